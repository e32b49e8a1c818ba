// rdma-instructions serve ADDRESS PORT DELAY_US        answers each message after that time, on one connection
// rdma-instructions call ADDRESS PORT ROUNDS PAUSE_US  asks so often, and then runs the command in
// $AFTER
//
// Messages of 512 bytes. Until the connection has had time to go over to RDMA the client uses write
// and read, which are not counted, from then on send and recv. With a PAUSE it sleeps for so long
// before it takes the answer without waiting: the library's I/O thread has polled meanwhile, and
// the bytes lie in the ring. With 0 recv waits, and polls by itself.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 512

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "rdma-instructions: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void uncounted(int s, char *message) {
    check(write(s, message, SIZE) != SIZE, "write");
    for (ssize_t have = 0, n; have < SIZE; have += n) {
        n = read(s, message + have, (size_t)(SIZE - have));
        check(n <= 0, "read");
    }
}

static void counted(int s, char *message, useconds_t pause_us) {
    check(send(s, message, SIZE, 0) != SIZE, "send");
    for (ssize_t have = 0, n; have < SIZE; have += n) {
        if (pause_us)
            usleep(pause_us);
        n = recv(s, message + have, (size_t)(SIZE - have), pause_us ? MSG_DONTWAIT : 0);
        if (n < 0 && errno == EAGAIN)
            n = 0;
        else
            check(n <= 0, "recv");
    }
}

int main(int argc, char **argv) {
    static char message[SIZE];
    struct sockaddr_in address = {.sin_family = AF_INET};
    int on = 1;
    if (argc < 5 || !inet_aton(argv[2], &address.sin_addr))
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[3]));
    // Not inherited by the command, for which it would have to go back to TCP.
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(s < 0, "socket");
    if (!strcmp(argv[1], "serve")) {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        check(bind(s, (struct sockaddr *)&address, sizeof address) || listen(s, 1), "listen");
        int c = accept(s, NULL, NULL);
        check(c < 0, "accept");
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        for (useconds_t delay_us = (useconds_t)atoi(argv[4]);;) {
            for (ssize_t have = 0, n; have < SIZE; have += n)
                if ((n = recv(c, message + have, (size_t)(SIZE - have), 0)) <= 0)
                    return 0;
            if (delay_us)
                usleep(delay_us);
            check(send(c, message, SIZE, 0) != SIZE, "send");
        }
    }
    check(argc < 6 || connect(s, (struct sockaddr *)&address, sizeof address), "connect");
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (int i = 0; i < 40; i++) {
        for (int j = 0; j < 20; j++)
            uncounted(s, message);
        usleep(50000);
    }
    for (int i = 0; i < atoi(argv[4]); i++)
        counted(s, message, (useconds_t)atoi(argv[5]));
    return getenv("AFTER") ? system(getenv("AFTER")) : 0;
}
