import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Contender: the JDK's HttpServer with a virtual thread for each request, with the endpoints that
 * src/lib.rs lists, except the database and WebSockets, for which the JDK has no server.
 *
 * <p>Usage: Rival PORT DIR
 */
public final class Rival {
  private static final byte[] TEXT = "Hello, World!".getBytes(StandardCharsets.US_ASCII);

  private static final int PIECE_LEN = 256 << 10;

  public static void main(String[] words) throws Exception {
    int port = Integer.parseInt(words[0]);
    Path dir = Path.of(words[1]);
    byte[] text500 = "x".repeat(500).getBytes(StandardCharsets.US_ASCII);
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 1024);
    server.createContext("/text", exchange -> send(exchange, "text/plain", TEXT));
    server.createContext("/pooled", exchange -> send(exchange, "text/plain", TEXT));
    server.createContext("/text500", exchange -> send(exchange, "text/plain", text500));
    server.createContext("/json", exchange -> send(exchange, "application/json", json()));
    server.createContext("/sleep10", sleeping(10));
    server.createContext("/sleep1000", sleeping(1000));
    server.createContext("/file", exchange -> sendFile(exchange, dir.resolve("file")));
    server.createContext("/big", exchange -> sendFile(exchange, dir.resolve("big")));
    server.createContext("/upload", Rival::upload);
    server.setExecutor(virtualThreads());
    server.start();
  }

  /** Calls {@code Executors.newVirtualThreadPerTaskExecutor}, which compilers before 21 lack. */
  private static ExecutorService virtualThreads() throws ReflectiveOperationException {
    return (ExecutorService)
        Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
  }

  private static HttpHandler sleeping(long timeMs) {
    return exchange -> {
      try {
        Thread.sleep(timeMs);
      } catch (InterruptedException error) {
        throw new IOException(error);
      }
      send(exchange, "text/plain", TEXT);
    };
  }

  /** Writes the object by hand, because the JDK has no JSON. */
  private static byte[] json() {
    String text = new String(TEXT, StandardCharsets.US_ASCII);
    return ("{\"message\":\"" + text + "\"}").getBytes(StandardCharsets.UTF_8);
  }

  private static void send(HttpExchange exchange, String type, byte[] body) throws IOException {
    exchange.getResponseHeaders().set("Content-Type", type);
    exchange.sendResponseHeaders(200, body.length);
    try (OutputStream out = exchange.getResponseBody()) {
      out.write(body);
    }
  }

  private static void sendFile(HttpExchange exchange, Path path) throws IOException {
    exchange.getResponseHeaders().set("Content-Type", "application/octet-stream");
    exchange.sendResponseHeaders(200, Files.size(path));
    byte[] piece = new byte[PIECE_LEN];
    try (InputStream in = Files.newInputStream(path);
        OutputStream out = exchange.getResponseBody()) {
      for (int len = in.read(piece); len >= 0; len = in.read(piece)) {
        out.write(piece, 0, len);
      }
    }
  }

  private static void upload(HttpExchange exchange) throws IOException {
    byte[] piece = new byte[PIECE_LEN];
    long sum = 0;
    try (InputStream in = exchange.getRequestBody()) {
      for (int len = in.read(piece); len >= 0; len = in.read(piece)) {
        sum += len;
      }
    }
    send(exchange, "text/plain", (sum + "\n").getBytes(StandardCharsets.US_ASCII));
  }
}
