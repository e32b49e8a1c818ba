import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.atomic.*;

/** `server PORT`: an echo by one Selector. `client PORT CONNECTIONS SECONDS`: prints requests, errors, seconds. */
public class Echo {
    public static void main(String[] words) throws Exception {
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("server")) serve(port);
        else load(port, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
    }

    static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port)).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                } else {
                    echo(key);
                }
            }
        }
    }

    /** Reads into the buffer, writes what it can, and asks for what it waits for. */
    static void echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        try {
            if (key.isReadable() && channel.read(buffer) < 0) {
                channel.close();
                return;
            }
            buffer.flip();
            channel.write(buffer);
            buffer.compact();
        } catch (IOException error) {
            channel.close();
            return;
        }
        key.interestOps((buffer.hasRemaining() ? SelectionKey.OP_READ : 0) | (buffer.position() > 0 ? SelectionKey.OP_WRITE : 0));
    }

    /** Half of the connections are SocketChannels, half are java.net's Sockets. */
    static void load(int port, int count, int seconds) throws Exception {
        AtomicLong requests = new AtomicLong(), errors = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        long begin = System.nanoTime(), end = begin + seconds * 1_000_000_000L;
        for (int i = 0; i < count; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    if (number % 2 == 0) channel(port, number, end, requests, errors);
                    else socket(port, number, end, requests, errors);
                } catch (IOException error) {
                    System.err.println(error);
                    errors.incrementAndGet();
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) thread.join();
        System.out.println(requests + " " + errors + " " + (System.nanoTime() - begin) / 1e9);
    }

    static byte[] message(Random random, int n) {
        byte[] data = new byte[1 + (n * 7919) % (n % 100 == 99 ? 300000 : 3000)];
        random.nextBytes(data);
        return data;
    }

    static void channel(int port, int number, long end, AtomicLong requests, AtomicLong errors) throws IOException {
        Random random = new Random(number);
        try (SocketChannel channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            for (int n = 0; n < 200 || System.nanoTime() < end; n++) {
                byte[] data = message(random, n);
                ByteBuffer out = ByteBuffer.wrap(data), in = ByteBuffer.allocate(data.length);
                // Not more under way than the two ends have room for: nobody reads while both write.
                while (in.hasRemaining()) {
                    if (out.hasRemaining()) {
                        out.limit(Math.min(out.position() + 30000, data.length));
                        while (out.hasRemaining()) channel.write(out);
                        int sent = out.position();
                        out.limit(data.length);
                        while (in.position() < sent) if (channel.read(in) < 0) throw new EOFException();
                    }
                }
                requests.incrementAndGet();
                if (!Arrays.equals(data, in.array())) errors.incrementAndGet();
            }
        }
    }

    static void socket(int port, int number, long end, AtomicLong requests, AtomicLong errors) throws IOException {
        Random random = new Random(number);
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setTcpNoDelay(true);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (int n = 0; n < 200 || System.nanoTime() < end; n++) {
                byte[] data = message(random, n), got = new byte[data.length];
                for (int at = 0; at < data.length; at += 30000) {
                    int size = Math.min(30000, data.length - at);
                    socket.getOutputStream().write(data, at, size);
                    in.readFully(got, at, size);
                }
                requests.incrementAndGet();
                if (!Arrays.equals(data, got)) errors.incrementAndGet();
            }
        }
    }
}
