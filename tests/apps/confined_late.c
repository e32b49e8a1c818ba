/* A server that waits past libc, for confined.sh. x86-64.
 *
 *   confined_late PORT  serves one connection by libc's poll, 400 messages and more until the
 *                       library has decided, to which it answers E at the last, and says by what
 *                       path the library has it (include/netacc.h); then waits for eight seconds
 *                       by an instruction of its own, says what poll(2) answered, and receives by
 *                       libc's recv.
 */
#include <netacc.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

static long past_libc(long number, long a, long b, long c)
{
    long answer;

    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return answer;
}

/* Both ways by one path, and nobody is asked about another. */
static int decided(int fd)
{
    struct netacc_info info;

    return netacc_get_info(fd, &info) != 0 ||
           (info.rx_path == info.tx_path && strcmp(info.reason_name, "negotiating") != 0 && strcmp(info.reason_name, "agreed") != 0 &&
            strcmp(info.reason_name, "not-started") != 0 && strcmp(info.reason_name, "no-record") != 0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1])) };
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct netacc_info info;
    struct pollfd poll_it;
    time_t end = time(NULL) + 30;
    char bytes[100];

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1) != 0) {
        perror("listen");
        return 1;
    }
    poll_it.fd = accept(listener, NULL, NULL);
    poll_it.events = POLLIN;
    for (int n = 1, enough = 0; !enough; n++) {
        ssize_t length;

        poll(&poll_it, 1, -1);
        length = recv(poll_it.fd, bytes, sizeof bytes, 0);
        if (length <= 0)
            return 1;
        enough = n >= 400 && (decided(poll_it.fd) || time(NULL) > end);
        bytes[0] = enough ? 'E' : '.';
        send(poll_it.fd, bytes, length, 0);
    }
    if (netacc_get_info(poll_it.fd, &info) == 0)
        printf("%s %s\n", netacc_path_name(info.rx_path), info.reason_name);
    printf("past libc: %ld\n", past_libc(SYS_poll, (long)&poll_it, 1, 8000));
    printf("by libc: %.*s\n", (int)recv(poll_it.fd, bytes, sizeof bytes, 0), bytes);
    return 0;
}
