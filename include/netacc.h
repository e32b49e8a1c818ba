/* netacc.h: what becomes of this program's TCP connections under netacc, and for how long a
 * thread's waits poll.
 *
 * A program that includes this links to nothing and needs nothing to be installed where it runs:
 * without the library in its process every answer is "no". netacc(3) is the manual.
 *
 * Both are socket options at a level that no kernel has. The library knows them; the kernel, where
 * there is no library, refuses them. Other languages can use them the same way.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef NETACC_H
#define NETACC_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

/* C++ and C99 have this word; so have GNU's compilers in C89, under another name. */
#if defined(__GNUC__) && !defined(__cplusplus)
#define NETACC_INLINE static __inline__
#elif defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L)
#define NETACC_INLINE static inline
#else
#define NETACC_INLINE static
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The level and the options of getsockopt(2) and setsockopt(2). */
#define NETACC_LEVEL 0x6e61
#define NETACC_INFO 1        /* of a connection: struct netacc_info; is not set */
#define NETACC_THREAD_POLL 2 /* of the calling thread, whatever the descriptor: int */

/* A thread's waits poll for as long as is configured. */
#define NETACC_POLL_AS_CONFIGURED (-1)

/* Paths. */
#define NETACC_TCP 0
#define NETACC_SHM 1
#define NETACC_RDMA 2
#define NETACC_UTCP 3

/* Reasons; all others by their names: docs/manual/reasons.md. Their numbers never change. */
#define NETACC_REASON_NONE 0        /* it is accelerated */
#define NETACC_REASON_NEGOTIATING 1 /* not decided: a second of use decides */
#define NETACC_REASON_NOT_STARTED 30 /* it is new: it has carried too little yet */
#define NETACC_REASON_ABSENT 0xffffffffu /* no library answers in this process */

/* What is known of a connection. Later versions add fields at the end, and change none. */
struct netacc_info {
    uint32_t version;       /* 1 and above: of the library's answer; 0: no library has answered */
    uint32_t accelerated;   /* 1: a direction is on a faster path than TCP; otherwise 0 */
    uint32_t tx_path;       /* the path of what this end sends: NETACC_TCP, ... */
    uint32_t rx_path;       /* and of what it receives */
    uint32_t reason;        /* why it is not accelerated: NETACC_REASON_NONE, ... */
    uint32_t reserved;      /* 0 */
    char reason_name[32];   /* the reason as netacc_ss shows it, such as "socket-option" */
    char reason_text[256];  /* what it means: an English sentence */
};

/* Fills *info for the connected socket fd. Returns 0; or -1 and sets errno as getpeername(2) does:
 * EBADF, ENOTSOCK, ENOTCONN. */
NETACC_INLINE int netacc_get_info(int fd, struct netacc_info *info)
{
    static const char name[] = "no-library";
    static const char text[] = "No netacc library answers in this process.";
    int before = errno;
    socklen_t length = sizeof *info;
    struct sockaddr_storage peer;

    memset(info, 0, sizeof *info);
    if (getsockopt(fd, NETACC_LEVEL, NETACC_INFO, info, &length) == 0 && info->version != 0) {
        info->reason_name[sizeof info->reason_name - 1] = '\0';
        info->reason_text[sizeof info->reason_text - 1] = '\0';
        return 0;
    }
    length = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0)
        return -1;
    errno = before;
    memset(info, 0, sizeof *info);
    info->reason = NETACC_REASON_ABSENT;
    memcpy(info->reason_name, name, sizeof name);
    memcpy(info->reason_text, text, sizeof text);
    return 0;
}

/* 1: fd is a connection that is accelerated; 0: it is not, now; -1: as netacc_get_info(). */
NETACC_INLINE int netacc_is_accelerated(int fd)
{
    struct netacc_info info;

    return netacc_get_info(fd, &info) == 0 ? (int)info.accelerated : -1;
}

/* "tcp", "shm", "rdma", "utcp"; "unknown" for the path of a later version. */
NETACC_INLINE const char *netacc_path_name(uint32_t path)
{
    switch (path) {
    case NETACC_TCP: return "tcp";
    case NETACC_SHM: return "shm";
    case NETACC_RDMA: return "rdma";
    case NETACC_UTCP: return "utcp";
    default: return "unknown";
    }
}

/* From here on the calling thread's waits poll for so many microseconds at most before they sleep,
 * within what the operator allows: 0: they sleep at once; NETACC_POLL_AS_CONFIGURED: as long as
 * those of a thread that has said nothing. Returns 0; or -1 and sets errno: ENOSYS: no library is
 * there to do it (waits are the kernel's then, which sleep at once); EINVAL: less than -1. */
NETACC_INLINE int netacc_set_thread_poll(int microseconds)
{
    int before = errno;

    if (setsockopt(-1, NETACC_LEVEL, NETACC_THREAD_POLL, &microseconds, sizeof microseconds) == 0) {
        errno = before;
        return 0;
    }
    if (errno == EBADF)
        errno = ENOSYS;
    return -1;
}

/* What the calling thread has set; NETACC_POLL_AS_CONFIGURED where that is nothing, as where there
 * is no library. */
NETACC_INLINE int netacc_thread_poll(void)
{
    int before = errno, microseconds = NETACC_POLL_AS_CONFIGURED;
    socklen_t length = sizeof microseconds;

    if (getsockopt(-1, NETACC_LEVEL, NETACC_THREAD_POLL, &microseconds, &length) != 0)
        microseconds = NETACC_POLL_AS_CONFIGURED;
    errno = before;
    return microseconds;
}

#ifdef __cplusplus
}
#endif

#endif
