// Resolves, reads and compiles the first 6,000 modules below a directory, as `require` does, but
// does not run them.
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const { wrap } = require('module');

let left = 6000;
function visit(directory) {
  for (const entry of fs.readdirSync(directory, { withFileTypes: true })) {
    const file = path.join(directory, entry.name);
    if (entry.isDirectory()) visit(file);
    else if (entry.isFile() && file.endsWith('.js') && left-- > 0) {
      const text = fs.readFileSync(require.resolve(file), 'utf8');
      try {
        new vm.Script(wrap(text), { filename: file });
      } catch (error) {
        // Modules of the other kind, which `import` loads, do not compile.
        if (!(error instanceof SyntaxError)) throw error;
      }
    }
  }
}
visit(path.resolve(process.argv[2]));
