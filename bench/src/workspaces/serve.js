// Starts the development server of the Angular project in the current directory, then edits a
// file. Prints the milliseconds of the start and of the rebuild.
const { spawn } = require('child_process');
const fs = require('fs');

const times = [];
let said = '';
let start = Date.now();
const arguments_ = ['node_modules/@angular/cli/bin/ng.js', 'serve', '--port', '0'];
const server = spawn(process.execPath, arguments_, { stdio: ['ignore', 'pipe', 'pipe'] });
const read = (chunk) => {
  said += chunk;
  if (said.includes('Failed to compile')) return void server.kill();
  if (!said.includes('Compiled successfully')) return;
  said = '';
  times.push(Date.now() - start);
  if (times.length === 2) return void server.kill();
  start = Date.now();
  fs.appendFileSync('src/main.ts', "console.log('edited');\n");
};
server.stdout.on('data', read);
server.stderr.on('data', read);
server.on('close', () => {
  if (times.length < 2) {
    console.error(said.slice(-2000));
    process.exit(1);
  }
  console.log(times.join(' '));
});
setTimeout(() => server.kill(), 120_000).unref();
