// Short connections, one after another: each makes one request, has one reply, and is closed by
// both ends.
//
//   short_calls serve HOST PORT HOW N      short_calls ask HOST PORT HOW N
//
// HOW: "block" (blocking calls), "epoll" (every wait in epoll_wait, no call blocks), "poll",
// "twice" (as that, and a second connect tells how the first one has ended), or "half" (blocking,
// and the client shuts its side down before it reads, the server before it closes). The server ends
// after N connections.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(what) ({ long r_ = (what); if (r_ < 0) { perror(#what); exit(1); } r_; })

static int set = -1, polls;

// Waits until `fd` is ready for `events`, in the way that was asked for.
static void await(int fd, int events, int new) {
    if (set >= 0) {
        struct epoll_event event = {.events = events, .data.fd = fd};
        MUST(epoll_ctl(set, new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event));
        MUST(epoll_wait(set, &event, 1, -1));
    } else if (polls) {
        struct pollfd one = {.fd = fd, .events = events};
        MUST(poll(&one, 1, -1));
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *at;
    if (getaddrinfo(argv[2], argv[3], &hints, &at)) return 2;
    const int serves = !strcmp(argv[1], "serve"), half = !strcmp(argv[4], "half");
    const int twice = !strcmp(argv[4], "twice");
    polls = twice || !strcmp(argv[4], "poll");
    if (!strcmp(argv[4], "epoll")) set = MUST(epoll_create1(0));
    const int flags = set >= 0 || polls ? SOCK_NONBLOCK : 0;
    int listener = -1;
    if (serves) {
        listener = MUST(socket(at->ai_family, SOCK_STREAM | flags, 0));
        int one = 1;
        MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
        MUST(bind(listener, at->ai_addr, at->ai_addrlen));
        MUST(listen(listener, 128));
        MUST(write(1, "ready\n", 6));
    }
    char bytes[256] = {0};
    for (long n = atol(argv[5]); n > 0; n--) {
        int fd;
        if (serves) {
            await(listener, EPOLLIN, n == atol(argv[5]));
            fd = MUST(accept4(listener, NULL, NULL, flags));
            await(fd, EPOLLIN, 1);
            MUST(recv(fd, bytes, sizeof bytes, 0));
            MUST(send(fd, bytes, 200, MSG_NOSIGNAL));
            if (half) {
                MUST(shutdown(fd, SHUT_WR));
                MUST(recv(fd, bytes, sizeof bytes, 0));
            }
        } else {
            fd = MUST(socket(at->ai_family, SOCK_STREAM | flags, 0));
            if (connect(fd, at->ai_addr, at->ai_addrlen) < 0) {
                if (errno != EINPROGRESS) MUST(-1);
                await(fd, EPOLLOUT, 1);
                int error = 0;
                socklen_t len = sizeof error;
                if (twice) {
                    MUST(connect(fd, at->ai_addr, at->ai_addrlen));
                } else {
                    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
                }
                if (error) exit(1);
                MUST(send(fd, bytes, 100, MSG_NOSIGNAL));
                await(fd, EPOLLIN, 0);
            } else {
                MUST(send(fd, bytes, 100, MSG_NOSIGNAL));
            }
            if (half) MUST(shutdown(fd, SHUT_WR));
            MUST(recv(fd, bytes, sizeof bytes, 0));
        }
        MUST(close(fd));
    }
    return 0;
}
