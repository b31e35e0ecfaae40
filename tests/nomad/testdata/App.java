import java.io.InputStream;
import java.io.OutputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import sun.misc.Signal;

/** What the java driver's jobs run: the first argument says what. */
public final class App {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "hello" -> {
                System.out.println("hello from java " + System.getenv("NOMAD_TASK_NAME"));
                System.err.println("oops from java");
            }
            case "fail" -> {
                System.out.println("failing");
                System.exit(1);
            }
            case "service" -> {
                Signal.handle(new Signal("USR2"), s -> System.out.println("got USR2"));
                Signal.handle(new Signal("HUP"), s -> System.exit(0));
                System.out.println("ready");
                Thread.sleep(Long.MAX_VALUE);
            }
            case "count" -> {
                Signal.handle(new Signal("HUP"), s -> System.exit(0));
                for (long n = 1; ; n++) {
                    System.out.println("line " + n);
                    Thread.sleep(50);
                }
            }
            case "env" -> {
                System.getenv().forEach((key, value) -> System.out.println(key + "=" + value));
                System.out.println(args[1]);
            }
            case "arguments" -> {
                for (int n = 1; n < args.length; n++) {
                    System.out.println("fact argument " + n + ": " + args[n]);
                }
            }
            // What the jobs of the other drivers run, from within Java.
            case "shell" -> System.exit(new ProcessBuilder("/bin/sh", "-c", args[1]).inheritIO().start().waitFor());
            case "serve" -> serve(Integer.parseInt(args[1]), Integer.parseInt(args[2]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    /** Answers on one port of 127.0.0.1 and asks the other task on another. */
    private static void serve(int own, int theirs) throws Exception {
        ServerSocket server = new ServerSocket(own, 8, java.net.InetAddress.getByName("127.0.0.1"));
        Thread asking = new Thread(() -> {
            while (true) {
                try (Socket socket = new Socket("127.0.0.1", theirs)) {
                    socket.getOutputStream().write("GET / HTTP/1.0\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
                    String answer = new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
                    System.out.println("asked: " + answer.replaceAll("(?s).*\r\n\r\n", "").strip());
                    return;
                } catch (Exception e) {
                    try {
                        Thread.sleep(100);
                    } catch (InterruptedException interrupted) {
                        return;
                    }
                }
            }
        });
        asking.start();
        while (true) {
            try (Socket socket = server.accept()) {
                InputStream in = socket.getInputStream();
                in.read(new byte[4096]);
                OutputStream out = socket.getOutputStream();
                out.write("HTTP/1.0 200 OK\r\nContent-Length: 15\r\n\r\nhello from java".getBytes(StandardCharsets.US_ASCII));
            }
        }
    }
}
