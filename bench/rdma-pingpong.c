// pingpong server ADDRESS PORT            echoes what comes on one connection, until its end
// pingpong client ADDRESS PORT ROUNDS     one connection, messages of 512 bytes, blocking calls
//
// The client tells the rig `measured` when it has its figures, and keeps its connection until
// `looked` is told, so that somebody can see what the connection is on. Messages are checked.
// Output: a line of NAME=VALUE for bench/rdma.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SIZE 512
#define WARM_UP 500

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "pingpong: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t net0(const char *what) {
    char path[100];
    unsigned long long value = 0;
    snprintf(path, sizeof path, "/sys/class/net/net0/statistics/%s", what);
    FILE *file = fopen(path, "r");
    check(!file || fscanf(file, "%llu", &value) != 1, path);
    fclose(file);
    return value;
}

// Whether all of it came; false at the end of the stream.
static int receive(int s, char *to) {
    for (ssize_t have = 0, n; have < SIZE; have += n) {
        n = recv(s, to + have, (size_t)(SIZE - have), 0);
        check(n < 0 || (n == 0 && have > 0 && (errno = EPIPE)), "recv");
        if (n == 0)
            return 0;
    }
    return 1;
}

static void transmit(int s, const char *from) {
    for (ssize_t have = 0, n; have < SIZE; have += n) {
        n = send(s, from + have, (size_t)(SIZE - have), 0);
        check(n < 0, "send");
    }
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void serve(int listener) {
    static char message[SIZE];
    check(listen(listener, 1), "listen");
    int told = open("/rig/told/pingpong-up", O_CREAT | O_WRONLY, 0666);
    check(told < 0, "/rig/told");
    int s = accept(listener, NULL, NULL), on = 1;
    check(s < 0, "accept");
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while (receive(s, message))
        transmit(s, message);
    close(s);
}

static void use(int s, uint64_t rounds) {
    static char out[SIZE], in[SIZE];
    uint64_t *ns = calloc(rounds, sizeof *ns), packets = 0, bytes = 0, begin = 0;
    int on = 1;
    check(!ns, "memory");
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (uint64_t i = 0; i < WARM_UP + rounds; i++) {
        if (i == WARM_UP) {
            packets = net0("tx_packets") + net0("rx_packets"), bytes = net0("tx_bytes") + net0("rx_bytes");
            begin = now_ns();
        }
        memset(out, (int)(i & 255), SIZE);
        memcpy(out, &i, sizeof i);
        uint64_t sent = now_ns();
        transmit(s, out);
        check(!receive(s, in), "the server ended the connection");
        check(memcmp(in, out, SIZE) && (errno = EBADMSG), "echo");
        if (i >= WARM_UP)
            ns[i - WARM_UP] = now_ns() - sent;
    }
    double seconds = (double)(now_ns() - begin) / 1e9;
    packets = net0("tx_packets") + net0("rx_packets") - packets, bytes = net0("tx_bytes") + net0("rx_bytes") - bytes;
    qsort(ns, rounds, sizeof *ns, ascending);
    printf("rate=%.1f p50_us=%.1f p99_us=%.1f packets=%.3f bytes=%.0f\n", (double)rounds / seconds, (double)ns[rounds / 2] / 1e3,
           (double)ns[rounds - 1 - rounds / 100] / 1e3, (double)packets / (double)rounds, (double)bytes / (double)rounds);
    fflush(stdout);
    int told = open("/rig/told/measured", O_CREAT | O_WRONLY, 0666);
    check(told < 0, "/rig/told");
    while (access("/rig/told/looked", F_OK) && access("/rig/told/server-ended", F_OK))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    close(s);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (argc < 4 || !inet_aton(argv[2], &address.sin_addr))
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[3]));
    int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    check(s < 0, "socket");
    if (!strcmp(argv[1], "server")) {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        check(bind(s, (struct sockaddr *)&address, sizeof address), "bind");
        serve(s);
    } else if (argc == 5) {
        check(connect(s, (struct sockaddr *)&address, sizeof address), "connect");
        use(s, strtoull(argv[4], NULL, 10));
    }
    return 0;
}
