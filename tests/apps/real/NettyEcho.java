import io.netty.bootstrap.*;
import io.netty.buffer.*;
import io.netty.channel.*;
import io.netty.channel.epoll.*;
import java.util.Random;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

/** Netty's native epoll transport. `server PORT`: an echo. `client PORT CONNECTIONS ROUNDS`: prints how many messages came back as sent. */
public class NettyEcho {
    public static void main(String[] words) throws Exception {
        Epoll.ensureAvailability();
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("server")) serve(port);
        else load(port, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
    }

    static void serve(int port) throws Exception {
        new ServerBootstrap().group(new EpollEventLoopGroup(1), new EpollEventLoopGroup(2)).channel(EpollServerSocketChannel.class)
            .childHandler(new ChannelInitializer<Channel>() {
                @Override protected void initChannel(Channel channel) {
                    channel.pipeline().addLast(new ChannelInboundHandlerAdapter() {
                        @Override public void channelRead(ChannelHandlerContext context, Object bytes) { context.write(bytes); }
                        @Override public void channelReadComplete(ChannelHandlerContext context) { context.flush(); }
                        @Override public void exceptionCaught(ChannelHandlerContext context, Throwable error) { context.close(); }
                    });
                }
            }).bind("127.0.0.1", port).sync().channel().closeFuture().sync();
    }

    static void load(int port, int connections, int rounds) throws Exception {
        EpollEventLoopGroup group = new EpollEventLoopGroup(2);
        AtomicInteger right = new AtomicInteger();
        CountDownLatch over = new CountDownLatch(connections);
        for (int i = 0; i < connections; i++) {
            Random random = new Random(i);
            new Bootstrap().group(group).channel(EpollSocketChannel.class).handler(new ChannelInboundHandlerAdapter() {
                byte[] sent;
                int came, round;
                boolean same;

                void next(ChannelHandlerContext context) {
                    if (round++ == rounds) {
                        context.close();
                        return;
                    }
                    sent = new byte[1 + round * 7919 % (round % 100 == 0 ? 100000 : 3000)];
                    random.nextBytes(sent);
                    came = 0;
                    same = true;
                    context.writeAndFlush(Unpooled.wrappedBuffer(sent));
                }

                @Override public void channelActive(ChannelHandlerContext context) { next(context); }

                @Override public void channelRead(ChannelHandlerContext context, Object message) {
                    ByteBuf bytes = (ByteBuf) message;
                    while (bytes.isReadable()) same &= came < sent.length && bytes.readByte() == sent[came++];
                    bytes.release();
                    if (came == sent.length) {
                        if (same) right.incrementAndGet();
                        next(context);
                    }
                }

                @Override public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
                    System.err.println(error);
                    context.close();
                }

                @Override public void channelInactive(ChannelHandlerContext context) { over.countDown(); }
            }).connect("127.0.0.1", port).addListener(made -> { if (!made.isSuccess()) { System.err.println(made.cause()); over.countDown(); } });
        }
        over.await();
        System.out.println(right);
        group.shutdownGracefully(0, 1, TimeUnit.SECONDS).sync();
    }
}
