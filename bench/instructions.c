// instructions serve PORT ORDERS ANSWERS
// instructions call PORT ORDERS ANSWERS      what bench/instructions counts
//
// ORDERS and ANSWERS are named pipes. Before each counted call the server has done its part (sent
// what there is to be read, read what was sent) and waits for the next order; so no call waits, and
// it takes the same number of instructions every time.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#define CONNECTIONS 100
#define ROUNDS 50

static int orders, answers, s[CONNECTIONS];
static char bytes[4096];

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "instructions: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void move(int fd, int size, int sends) {
    for (int done = 0; done < size;) {
        ssize_t n = sends ? send(fd, bytes, (size_t)(size - done), 0) : recv(fd, bytes, (size_t)(size - done), 0);
        check(n <= 0, sends ? "send" : "recv");
        done += (int)n;
    }
}

// What the server does: so many bytes on each of the first so many connections; or its part of a
// short connection.
struct order {
    int sends, connections, size;
};

enum { RECEIVE, SEND, ACCEPT, CONNECT, END };

static void peer(int sends, int connections, int size) {
    struct order o = {sends, connections, size};
    char done;
    check(write(orders, &o, sizeof o) != sizeof o || read(answers, &done, 1) != 1, "order");
}

// A short connection: its request, its reply, its end.
static void short_one(struct order o, int listener) {
    static int fd = -1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = (in_port_t)o.connections};
    if (o.sends == ACCEPT) {
        fd = accept(listener, NULL, NULL);
        check(fd < 0, "accept");
        move(fd, o.size, 0);
        move(fd, o.size, 1);
        close(fd);
    } else if (o.sends == CONNECT) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        check(fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to), "connect");
        move(fd, o.size, 1);
    } else {
        move(fd, o.size, 0);
        check(read(fd, bytes, 1) != 0, "end");
        close(fd);
    }
}

static void serve(struct sockaddr_in *address) {
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(bind(listener, (struct sockaddr *)address, sizeof *address) || listen(listener, CONNECTIONS), "listen");
    check(write(answers, "", 1) != 1, "answer");
    for (int i = 0; i < CONNECTIONS; i++) {
        s[i] = accept(listener, NULL, NULL);
        check(s[i] < 0, "accept");
        setsockopt(s[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    for (struct order o; read(orders, &o, sizeof o) == sizeof o;) {
        if (o.sends >= ACCEPT)
            short_one(o, listener);
        for (int i = 0; i < o.connections && o.sends < ACCEPT; i++)
            move(s[i], o.size, o.sends);
        check(write(answers, "", 1) != 1, "answer");
    }
}

static int set_of(int connections) {
    int set = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = s[i]};
        check(epoll_ctl(set, EPOLL_CTL_ADD, s[i], &e) < 0, "epoll_ctl");
    }
    return set;
}

static void change(int set, int op, int fd, unsigned events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    check(epoll_ctl(set, op, fd, &e) < 0, "epoll_ctl");
}

// The life of a connection of one request and one reply, as an event loop makes it; in three parts,
// between which the server does its own.
static int first_part(int set, struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    check(fd < 0 || connect(fd, (struct sockaddr *)address, sizeof *address) == 0 || errno != EINPROGRESS, "connect");
    change(set, EPOLL_CTL_ADD, fd, EPOLLOUT);
    return fd;
}

static int second_part(int set, int fd) {
    struct epoll_event e;
    check(epoll_wait(set, &e, 1, 0) != 1, "epoll_wait");
    change(set, EPOLL_CTL_DEL, fd, 0);
    check(write(fd, bytes, 64) != 64, "write");
    change(set, EPOLL_CTL_ADD, fd, EPOLLIN);
    return 0;
}

static int third_part(int set, int fd) {
    struct epoll_event e;
    check(epoll_wait(set, &e, 1, 0) != 1, "epoll_wait");
    check(read(fd, bytes, 4096) != 64, "read");
    check(read(fd, bytes, 4096) != 0, "read");
    change(set, EPOLL_CTL_DEL, fd, 0);
    return close(fd);
}

// The same, of a server.
static int accepted(int set, int listener) {
    struct epoll_event e;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    check(fd < 0, "accept4");
    change(set, EPOLL_CTL_ADD, fd, EPOLLIN);
    check(epoll_wait(set, &e, 1, 0) != 1, "epoll_wait");
    check(recv(fd, bytes, 4096, 0) != 64, "recv");
    check(send(fd, bytes, 64, 0) != 64, "send");
    return close(fd);
}

// Some rounds uncounted: the first calls of a kind have more to do.
#define COUNT(name, before, call, result, after)            \
    do {                                                    \
        for (int round = -10; round < ROUNDS; round++) {    \
            before;                                         \
            if (round >= 0)                                 \
                CALLGRIND_TOGGLE_COLLECT;                   \
            ssize_t r = call;                               \
            if (round >= 0) {                               \
                CALLGRIND_TOGGLE_COLLECT;                   \
                CALLGRIND_DUMP_STATS_AT(name);              \
            }                                               \
            check(r != (result), name);                     \
            after;                                          \
        }                                                   \
    } while (0)

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    if (argc != 5)
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    int serves = !strcmp(argv[1], "serve");
    orders = open(argv[3], serves ? O_RDONLY : O_WRONLY);
    answers = open(argv[4], serves ? O_WRONLY : O_RDONLY);
    check(orders < 0 || answers < 0, "open");
    if (serves) {
        serve(&address);
        return 0;
    }
    check(read(answers, bytes, 1) != 1, "answer");
    for (int i = 0; i < CONNECTIONS; i++) {
        // Not inherited by the command, for which it would have to go back to TCP.
        s[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(s[i] < 0 || connect(s[i], (struct sockaddr *)&address, sizeof address), "connect");
        setsockopt(s[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    // Until they are on their way.
    for (int i = 0; i < 40; i++) {
        for (int j = 0; j < CONNECTIONS; j++)
            move(s[j], 64, 1);
        peer(0, CONNECTIONS, 64);
        peer(1, CONNECTIONS, 64);
        for (int j = 0; j < CONNECTIONS; j++)
            move(s[j], 64, 0);
        usleep(20000);
    }
    CALLGRIND_ZERO_STATS;

    struct iovec two[2] = {{bytes, 32}, {bytes + 64, 32}};
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 1};
    COUNT("send 64 B", , send(s[0], bytes, 64, 0), 64, peer(0, 1, 64));
    COUNT("recv 64 B", peer(1, 1, 64), recv(s[0], bytes, 64, 0), 64, );
    COUNT("recv 64 B, room for 4 KiB", peer(1, 1, 64), recv(s[0], bytes, 4096, 0), 64, );
    COUNT("write 512 B", , write(s[0], bytes, 512), 512, peer(0, 1, 512));
    COUNT("read 512 B", peer(1, 1, 512), read(s[0], bytes, 512), 512, );
    COUNT("writev 2 x 32 B", , writev(s[0], two, 2), 64, peer(0, 1, 64));
    COUNT("readv 2 x 32 B", peer(1, 1, 64), readv(s[0], two, 2), 64, );
    COUNT("sendmsg 32 B", , sendmsg(s[0], &message, 0), 32, peer(0, 1, 32));
    COUNT("recvmsg 32 B", peer(1, 1, 32), recvmsg(s[0], &message, 0), 32, );
    COUNT("recv, nothing there", , recv(s[0], bytes, 64, MSG_DONTWAIT), -1, );

    struct pollfd p = {.fd = s[0], .events = POLLIN};
    COUNT("poll of 1, ready", peer(1, 1, 64), poll(&p, 1, 0), 1, move(s[0], 64, 0));

    struct epoll_event events[CONNECTIONS];
    int set = set_of(1);
    COUNT("epoll_wait, 1 of 1 ready", peer(1, 1, 64), epoll_wait(set, events, CONNECTIONS, 0), 1, move(s[0], 64, 0));
    COUNT("epoll_wait, 1 of 1 ready, again", peer(1, 1, 64); check(epoll_wait(set, events, CONNECTIONS, 0) != 1, "epoll_wait"),
          epoll_wait(set, events, CONNECTIONS, 0), 1, move(s[0], 64, 0));
    close(set);
    set = set_of(CONNECTIONS);
    COUNT("epoll_wait, 1 of 100 ready", peer(1, 1, 64), epoll_wait(set, events, CONNECTIONS, 0), 1, move(s[0], 64, 0));
    COUNT("epoll_wait, 10 of 100 ready", peer(1, 10, 64), epoll_wait(set, events, CONNECTIONS, 0), 10,
          for (int i = 0; i < 10; i++) move(s[i], 64, 0));
    COUNT("epoll_wait, 10 of 100 ready, again", peer(1, 10, 64); check(epoll_wait(set, events, CONNECTIONS, 0) != 10, "epoll_wait"),
          epoll_wait(set, events, CONNECTIONS, 0), 10, for (int i = 0; i < 10; i++) move(s[i], 64, 0));
    COUNT("epoll_wait, nothing ready", , epoll_wait(set, events, CONNECTIONS, 0), 0, );
    struct epoll_event out = {.events = EPOLLIN | EPOLLOUT, .data.fd = s[0]};
    COUNT("epoll_ctl MOD", , epoll_ctl(set, EPOLL_CTL_MOD, s[0], &out), 0, out.events ^= EPOLLOUT);

    close(set);

    set = epoll_create1(0);
    int fd;
    COUNT("short connection: socket, connect, epoll_ctl", , (fd = first_part(set, &address)) < 0, 0, check(second_part(set, fd), "");
          peer(ACCEPT, 0, 64); check(third_part(set, fd), ""));
    COUNT("short connection: epoll_wait, epoll_ctl, write, epoll_ctl", fd = first_part(set, &address), second_part(set, fd), 0,
          peer(ACCEPT, 0, 64); check(third_part(set, fd), ""));
    COUNT("short connection: epoll_wait, two reads, epoll_ctl, close", fd = first_part(set, &address); second_part(set, fd);
          peer(ACCEPT, 0, 64), third_part(set, fd), 0, );
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t own_len = sizeof own;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(bind(listener, (struct sockaddr *)&own, own_len) || listen(listener, 16), "listen");
    check(getsockname(listener, (struct sockaddr *)&own, &own_len), "getsockname");
    COUNT("short connection: accept4, epoll_ctl, epoll_wait, recv, send, close", peer(CONNECT, own.sin_port, 64),
          accepted(set, listener), 0, peer(END, 0, 64));

    int pipe_fds[2];
    check(pipe(pipe_fds), "pipe");
    COUNT("write 64 B, a pipe", , write(pipe_fds[1], bytes, 64), 64, check(read(pipe_fds[0], bytes, 64) != 64, "pipe"));
    if (getenv("AFTER"))
        check(system(getenv("AFTER")), "AFTER");
    return 0;
}
