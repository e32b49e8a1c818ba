// A library to preload that makes SMC sockets of TCP sockets, as smc-tools' libsmc-preload does;
// Debian has no smc-tools.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define SMCPROTO_SMC 0
#define SMCPROTO_SMC6 1

int socket(int domain, int type, int protocol) {
    static int (*next)(int, int, int);
    if (!next)
        next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    int tcp = (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
    if (tcp)
        return next(AF_SMC, type, domain == AF_INET ? SMCPROTO_SMC : SMCPROTO_SMC6);
    return next(domain, type, protocol);
}
