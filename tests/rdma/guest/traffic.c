// traffic [options] server|client ADDRESS PORT: streams in both directions of many connections,
// every byte of which both ends know. Ordinary sockets; nothing in here knows of RDMA.
//
//   -n N      connections (1). The client makes them, and the server ends with the last of so many
//   -k KINDS  what they do, in turn (b), see below
//   -b N      bytes in each direction (0: until told to stop)
//   -s N      seed of the bytes and of their cutting (1); the same at both ends
//   -h        hold: with all bytes over, leave the connections open until told to stop
//   -r        resist: a connection that breaks is no failure; the client makes another, the server takes any number
//   -o N      the client's numbers of its connections begin at N * connections (0)
//   -f FILE   progress, a file for others to map: see `struct file`
//   -w N      end with status 5 when an open connection has not moved for N seconds
//   -x I:N    spoil byte N of what is sent on connection I: the other end must notice
//
// Kinds: b bulk, s small messages, p bursts and pauses, q question and answer, i the same and up to
// 3 s of thought before each question, r reads late. A small letter: one thread for all of that
// kind with epoll, level-triggered and, on every other connection, edge-triggered. A capital
// letter: two threads for each connection, with blocking calls. Threads of b, s and q sleep without
// a timeout, so that an event that is lost is a stop.
//
// SIGUSR1: nothing more is sent, and the connections stay. SIGTERM tells to stop: the client shuts
// down for writing; the server answers an end of stream with its own. Status: 0 every stream came
// to its end with the right bytes, 3 a wrong byte, 4 a connection broke, 5 stopped moving, 1 other
// errors.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536
#define QUESTION 4096
#define MAX_CONNECTIONS 65536
#define MAGIC 0x63696666617274ULL
#define PREAMBLE 16 /* MAGIC, number of the connection; from the client */
#define ENDED 1     /* `recv_end`, `send_end`: by end of stream; errno + 1 otherwise; 0: not yet */

// What others may map. The connections of both ends have the same numbers: index + connections * (N
// of -o + how many the index had before).
struct entry {
    _Atomic uint64_t number_plus_1, sent, received, send_end, recv_end;
};
struct file {
    _Atomic uint64_t pid, entries, stopping, ended;
    struct entry entry[MAX_CONNECTIONS];
};

struct connection {
    struct entry *entry;
    int fd, kind, edge, in_epoll, broken;
    uint32_t index, events;
    uint64_t number, sent, received, my_end, peer_end, my_messages, peer_messages, burst_end, write_at, read_at, moved;
    int send_done, recv_done, threads;
    pthread_mutex_t lock;
    pthread_cond_t turn;
};

struct worker {
    int kind, epoll;
    pthread_mutex_t lock; // of what follows: connections are added by another thread
    struct connection **all;
    size_t count;
};

static int client, hold, resist, watch;
static uint64_t connections = 1, bytes, seed = 1, spoil_index = UINT64_MAX, spoil_offset, first_round;
static const char *kinds = "b", *address, *port;
static struct file *file;
static struct worker workers[128];
static int stop_event;
static atomic_int pausing, stopping, failed;
static pthread_mutex_t ends_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ends = PTHREAD_COND_INITIALIZER;
static uint64_t ended_count;
static uint32_t *lost;                            // indices whose connection broke, for the client to make anew
static size_t lost_count;
static struct connection *every[MAX_CONNECTIONS]; // for the watcher and for stopping; never freed

static void die(const char *what) {
    fprintf(stderr, "traffic: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

// --- the bytes: the words of a stream are a permutation of (connection, direction, position), so
// that any 8 bytes say where they belong

static uint64_t mixed(uint64_t x) { // the finalizer of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static uint64_t unmixed(uint64_t x) {
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089;
    return x ^ (x >> 30) ^ (x >> 60);
}

static uint64_t word(uint64_t number, int direction, uint64_t position) {
    return mixed((number << 41 | (uint64_t)direction << 40 | position) + mixed(seed));
}

static void fill(char *to, uint64_t number, int direction, uint64_t offset, size_t n) {
    for (size_t i = 0; i < n;) {
        uint64_t w = word(number, direction, (offset + i) / 8);
        size_t from = (offset + i) % 8, take = 8 - from < n - i ? 8 - from : n - i;
        memcpy(to + i, (char *)&w + from, take);
        i += take;
    }
}

// Says where these bytes belong.
static void whose(const char *at, size_t n) {
    for (size_t i = 0; i + 16 <= n && i < 8; i++) {
        char right[16];
        uint64_t w, x, offset;
        memcpy(&w, at + i, 8);
        x = unmixed(w) - mixed(seed), offset = (x & ((1ULL << 40) - 1)) * 8;
        fill(right, x >> 41, x >> 40 & 1, offset, 16);
        if (offset < 1ULL << 40 && !memcmp(right, at + i, 16)) {
            fprintf(stderr, "traffic: these are the bytes of connection %llu, to the %s, at offset %llu\n", (unsigned long long)(x >> 41),
                    x >> 40 & 1 ? "client" : "server", (unsigned long long)(offset - i));
            return;
        }
    }
    fprintf(stderr, "traffic: these bytes are of no stream%s\n", n < 23 ? ", or too few to tell" : "");
}

static void verify(struct connection *c, const char *got, size_t n) {
    static _Thread_local char right[CHUNK];
    fill(right, c->number, client, c->received, n);
    if (!memcmp(got, right, n))
        return;
    size_t i = 0;
    while (got[i] == right[i])
        i++;
    size_t last = n;
    while (got[last - 1] == right[last - 1])
        last--;
    fprintf(stderr, "traffic: WRONG BYTE: connection %llu (%c), to the %s, offset %llu: %02x instead of %02x; wrong up to %llu, read of %zu at %llu\n",
            (unsigned long long)c->number, c->kind, client ? "client" : "server", (unsigned long long)(c->received + i), got[i] & 255,
            right[i] & 255, (unsigned long long)(c->received + last), n, (unsigned long long)c->received);
    whose(got + i, n - i);
    _exit(3);
}

// --- one step of a connection, blocking or not

static uint64_t chance(struct connection *c, uint64_t what) { return word(c->number, client, (1ULL << 39) + what); }

static uint64_t question(struct connection *c, int mine, uint64_t i) {
    return 1 + word(c->number, mine ? !client : client, (1ULL << 38) + i) % QUESTION;
}

// Where the sending has to stop for now. Question and answer: a message may be sent when the other
// end's one before it is there.
static uint64_t may_send(struct connection *c) {
    uint64_t end = bytes ? bytes : UINT64_MAX;
    if (c->kind == 'q' || c->kind == 'i') {
        if (c->sent == c->my_end && (c->received >= c->peer_end || (bytes && c->received == bytes) || c->recv_done) && !(bytes && c->sent >= bytes)) {
            if (c->kind == 'i' && client)
                c->write_at = now_ns() + chance(c, c->sent) % 3000000000;
            c->my_end += question(c, 1, c->my_messages++);
            c->peer_end += question(c, 0, c->peer_messages++);
        }
        if (c->my_end < end)
            end = c->my_end;
    }
    return atomic_load(&pausing) ? c->sent : end;
}

static int wants_to_end(struct connection *c) {
    if (bytes && c->sent < bytes)
        return 0;
    return (bytes && !hold) || (client ? atomic_load(&stopping) : c->recv_done);
}

static void end_sending(struct connection *c, int error) {
    if (!c->send_done) {
        c->send_done = 1;
        c->broken |= error != 0;
        atomic_store(&c->entry->send_end, error ? (uint64_t)error + 1 : ENDED);
        if (!error && shutdown(c->fd, SHUT_WR) && errno != ENOTCONN)
            die("shutdown");
    }
}

static void end_receiving(struct connection *c, int error) {
    c->recv_done = 1;
    c->broken |= error != 0;
    atomic_store(&c->entry->recv_end, error ? (uint64_t)error + 1 : ENDED);
    // The server ends its streams after the client, but for one that has sent all.
    int early = client && !c->send_done && (c->received != bytes || hold || !bytes);
    c->broken |= early;
    if (error || early)
        end_sending(c, error);
}

// Sends a piece; 0 when there is nothing to send now, -1 when it would block.
static int send_some(struct connection *c) {
    static _Thread_local char out[CHUNK];
    uint64_t end = may_send(c), n = CHUNK, luck = chance(c, c->sent);
    if (wants_to_end(c)) {
        end_sending(c, 0);
        return 0;
    }
    if (c->kind == 's' || c->kind == 'p')
        n = 1 + luck % (c->kind == 's' ? 600 : 20000);
    if (n > end - c->sent)
        n = end - c->sent;
    if (n == 0 || c->write_at > now_ns())
        return 0;
    if (c->kind == 'p' && c->sent >= c->burst_end) {
        // A burst is over: a pause of up to 40 ms, then one of up to 200 KB.
        c->burst_end = c->sent + 1 + (luck >> 20) % 200000;
        c->write_at = now_ns() + (luck >> 40) % 40000000;
        return 0;
    }
    fill(out, c->number, !client, c->sent, n);
    if (c->index == spoil_index && c->sent <= spoil_offset && spoil_offset < c->sent + n)
        out[spoil_offset - c->sent] ^= 4;
    ssize_t done;
    size_t cut = (luck >> 8) % n;
    switch (luck >> 60 & 3) {
    case 0: done = write(c->fd, out, n); break;
    case 1: done = writev(c->fd, (struct iovec[]){{out, cut}, {out + cut, n - cut}}, 2); break;
    default: done = send(c->fd, out, n, MSG_NOSIGNAL); break;
    }
    if (done < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return -1;
        end_sending(c, errno);
        return 0;
    }
    c->sent += (uint64_t)done;
    c->moved = now_ns();
    atomic_store(&c->entry->sent, c->sent);
    return 1;
}

// Receives a piece; 0 at the end, -1 when it would block.
static int receive_some(struct connection *c) {
    static _Thread_local char in[CHUNK];
    uint64_t luck = chance(c, (1ULL << 37) + c->received);
    size_t want = c->kind == 's' ? 1 + luck % 1000 : CHUNK, cut = (luck >> 8) % want;
    ssize_t n;
    switch (luck >> 60 & 3) {
    case 0: n = read(c->fd, in, want); break;
    case 1: n = readv(c->fd, (struct iovec[]){{in, cut}, {in + cut, want - cut}}, 2); break;
    default: n = recv(c->fd, in, want, 0); break;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return -1;
    if (n <= 0) {
        end_receiving(c, n < 0 ? errno : 0);
        return 0;
    }
    verify(c, in, (size_t)n);
    c->received += (uint64_t)n;
    c->moved = now_ns();
    atomic_store(&c->entry->received, c->received);
    if (bytes && c->received > bytes) {
        fprintf(stderr, "traffic: connection %llu has %llu bytes too many\n", (unsigned long long)c->number, (unsigned long long)(c->received - bytes));
        _exit(3);
    }
    if (c->kind == 'r' && luck >> 32 & 1)
        c->read_at = now_ns() + (luck >> 40) % 30000000;
    return 1;
}

static void connection_ended(struct connection *c) {
    // The first cause is what is told; the end of a stream that is too short is none that was
    // agreed upon.
    int short_ = bytes && !c->broken && (c->received != bytes || c->sent != bytes);
    close(c->fd);
    if ((c->broken && !resist) || short_) {
        uint64_t e = atomic_load(&c->entry->recv_end), s = atomic_load(&c->entry->send_end), error = e > ENDED ? e - 1 : s - 1;
        fprintf(stderr, "traffic: connection %llu (%c): %s with %llu sent, %llu received\n", (unsigned long long)c->number, c->kind,
                error ? strerror((int)error) : "ended early", (unsigned long long)c->sent, (unsigned long long)c->received);
        atomic_store(&failed, 1);
    }
    pthread_mutex_lock(&ends_lock);
    c->fd = -1;
    ended_count++;
    // A client that resists has no other reason to lose a connection before it is told to stop.
    if (client && resist && !atomic_load(&stopping))
        lost[lost_count++] = c->index;
    atomic_store(&file->ended, ended_count);
    pthread_cond_broadcast(&ends);
    pthread_mutex_unlock(&ends_lock);
}

// --- kinds with blocking calls

static void sleep_until(uint64_t at) {
    uint64_t now = now_ns();
    if (at > now)
        nanosleep(&(struct timespec){.tv_sec = (time_t)((at - now) / 1000000000), .tv_nsec = (long)((at - now) % 1000000000)}, NULL);
}

static void thread_ended(struct connection *c) {
    pthread_mutex_lock(&c->lock);
    int last = --c->threads == 0;
    pthread_cond_broadcast(&c->turn);
    pthread_mutex_unlock(&c->lock);
    if (last)
        connection_ended(c);
}

static void *blocking_sender(void *it) {
    struct connection *c = it;
    for (;;) {
        pthread_mutex_lock(&c->lock);
        while (!c->send_done && !wants_to_end(c) && may_send(c) == c->sent)
            pthread_cond_wait(&c->turn, &c->lock);
        pthread_mutex_unlock(&c->lock);
        if (c->send_done)
            break;
        send_some(c);
        if (c->send_done)
            break;
        sleep_until(c->write_at);
    }
    thread_ended(c);
    return NULL;
}

static void *blocking_receiver(void *it) {
    struct connection *c = it;
    while (!c->recv_done) {
        receive_some(c);
        pthread_mutex_lock(&c->lock);
        pthread_cond_broadcast(&c->turn);
        pthread_mutex_unlock(&c->lock);
        if (!c->recv_done)
            sleep_until(c->read_at);
    }
    thread_ended(c);
    return NULL;
}

static void start_thread(void *(*run)(void *), void *it) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    if ((errno = pthread_create(&thread, &attributes, run, it)))
        die("pthread_create");
    pthread_attr_destroy(&attributes);
    pthread_detach(thread);
}

// --- kinds with epoll

// As far as it goes without blocking; what is left comes with the next event.
static void epoll_step(struct worker *w, struct connection *c, uint32_t events) {
    uint64_t now = now_ns();
    int got = 1, sent = 1, wants_in, wants_out;
    for (int i = 0; i < 8 && (got > 0 || sent > 0); i++) {
        if (got > 0)
            got = !c->recv_done && c->read_at <= now ? receive_some(c) : 0;
        if (sent > 0)
            sent = !c->send_done && (c->write_at <= now || wants_to_end(c)) ? send_some(c) : 0;
        if (got > 0 && (c->kind == 'q' || c->kind == 'i') && sent == 0)
            sent = 1; // it may be our turn
    }
    if (c->recv_done && c->send_done) {
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        c->in_epoll = 0;
        connection_ended(c);
        return;
    }
    if (c->recv_done && (events & EPOLLERR)) {
        // The end of the stream was read, then the connection broke.
        int error = 0;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error});
        if (error)
            end_sending(c, error);
    }
    wants_in = !c->recv_done && c->read_at <= now_ns();
    wants_out = !c->send_done && (sent != 0 || wants_to_end(c));
    uint32_t interest = (wants_in ? EPOLLIN | EPOLLRDHUP : 0) | (wants_out ? EPOLLOUT : 0) | (c->edge ? EPOLLET : 0);
    if (c->recv_done)
        interest &= ~(uint32_t)EPOLLRDHUP;
    // An edge that was not used up is armed again by the MOD.
    if (interest != c->events || (c->edge && (got > 0 || sent > 0))) {
        c->events = interest;
        if (epoll_ctl(w->epoll, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = interest, .data.ptr = c}))
            die("epoll_ctl");
    }
}

static void *epoll_worker(void *it) {
    struct worker *w = it;
    struct epoll_event events[64];
    int told = 0;
    for (;;) {
        int timeout = -1;
        if (w->kind == 'p' || w->kind == 'i' || w->kind == 'r') {
            uint64_t next = UINT64_MAX, now = now_ns();
            pthread_mutex_lock(&w->lock);
            for (size_t i = 0; i < w->count; i++) {
                struct connection *c = w->all[i];
                if (c->in_epoll && c->write_at && c->write_at < next)
                    next = c->write_at;
                if (c->in_epoll && c->read_at && c->read_at < next)
                    next = c->read_at;
            }
            pthread_mutex_unlock(&w->lock);
            if (next != UINT64_MAX)
                timeout = next > now ? (int)((next - now) / 1000000) + 1 : 0;
        }
        int n = epoll_wait(w->epoll, events, 64, timeout);
        if (n < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < n; i++)
            if (events[i].data.ptr)
                epoll_step(w, events[i].data.ptr, events[i].events);
            else if (!told) {
                // Told to stop: once to every connection, also to those that wait.
                told = 1;
                epoll_ctl(w->epoll, EPOLL_CTL_DEL, stop_event, NULL);
                timeout = 0;
            }
        if (timeout >= 0) {
            uint64_t now = now_ns();
            pthread_mutex_lock(&w->lock);
            for (size_t i = 0; i < w->count; i++) {
                struct connection *c = w->all[i];
                if (!c->in_epoll)
                    w->all[i--] = w->all[--w->count];
                else if (told || (c->write_at && c->write_at <= now) || (c->read_at && c->read_at <= now)) {
                    c->write_at = c->write_at <= now ? 0 : c->write_at;
                    c->read_at = c->read_at <= now ? 0 : c->read_at;
                    epoll_step(w, c, 0);
                }
            }
            pthread_mutex_unlock(&w->lock);
        }
    }
    return NULL;
}

// --- making connections

static void add(int fd, uint64_t number) {
    struct connection *c = calloc(1, sizeof *c);
    int kind = kinds[number % connections % strlen(kinds)], on = 1;
    uint64_t place = atomic_load(&file->entries);
    if (!c || place == MAX_CONNECTIONS)
        die("too many connections");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->fd = fd, c->number = number, c->index = (uint32_t)(number % connections), c->kind = kind | 32, c->moved = now_ns();
    c->entry = &file->entry[place];
    atomic_store(&c->entry->number_plus_1, number + 1);
    if (client)
        c->my_end = question(c, 1, c->my_messages++);
    c->peer_end = question(c, 0, c->peer_messages++);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->turn, NULL);
    every[place] = c;
    atomic_store(&file->entries, place + 1);
    if (kind < 'a') {
        c->threads = 2;
        start_thread(blocking_sender, c);
        start_thread(blocking_receiver, c);
        return;
    }
    struct worker *w = &workers[kind];
    if (!w->kind) {
        w->kind = kind;
        pthread_mutex_init(&w->lock, NULL);
        w->all = calloc(MAX_CONNECTIONS, sizeof *w->all);
        if (!w->all || (w->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
            epoll_ctl(w->epoll, EPOLL_CTL_ADD, stop_event, &(struct epoll_event){.events = EPOLLIN}))
            die("epoll");
        start_thread(epoll_worker, w);
    }
    if (fcntl(fd, F_SETFL, O_NONBLOCK))
        die("fcntl");
    c->edge = number / strlen(kinds) & 1 && kind != 'r' && kind != 'p' && kind != 'i';
    c->in_epoll = 1;
    c->events = EPOLLIN | EPOLLRDHUP | EPOLLOUT | (c->edge ? EPOLLET : 0);
    pthread_mutex_lock(&w->lock);
    w->all[w->count++] = c;
    pthread_mutex_unlock(&w->lock);
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = c->events, .data.ptr = c}))
        die("epoll_ctl");
}

static int whole(int fd, char *to, size_t n) {
    for (size_t have = 0; have < n;) {
        ssize_t got = recv(fd, to + have, n - have, 0);
        if (got <= 0)
            return 0;
        have += (size_t)got;
    }
    return 1;
}

static struct addrinfo *resolved(void) {
    struct addrinfo *found, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address, port, &hints, &found)) {
        fprintf(stderr, "traffic: %s %s is no address and port\n", address, port);
        exit(2);
    }
    return found;
}

static void *acceptor(void *it) {
    int listener = *(int *)it;
    for (uint64_t taken = 0; resist || taken < connections;) {
        uint64_t preamble[2];
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            die("accept");
        }
        if (!whole(fd, (char *)preamble, PREAMBLE)) {
            if (!resist)
                fprintf(stderr, "traffic: a connection ended in its preamble\n"), exit(4);
            close(fd);
            continue;
        }
        if (preamble[0] != MAGIC)
            fprintf(stderr, "traffic: WRONG BYTE in a preamble\n"), _exit(3);
        taken++;
        add(fd, preamble[1]);
    }
    return NULL;
}

static int connect_once(struct addrinfo *to, uint64_t number) {
    uint64_t preamble[2] = {MAGIC, number};
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    if (connect(fd, to->ai_addr, to->ai_addrlen) || send(fd, preamble, PREAMBLE, MSG_NOSIGNAL) != PREAMBLE) {
        int error = errno;
        close(fd);
        errno = error;
        return 0;
    }
    add(fd, number);
    return 1;
}

static void *stopper(void *it) {
    int which;
    while (!sigwait(it, &which) && which == SIGUSR1)
        atomic_store(&pausing, 1);
    atomic_store(&stopping, 1);
    atomic_store(&file->stopping, 1);
    if (eventfd_write(stop_event, 1))
        die("eventfd");
    for (uint64_t i = 0; i < atomic_load(&file->entries); i++) {
        pthread_mutex_lock(&every[i]->lock);
        pthread_cond_broadcast(&every[i]->turn);
        pthread_mutex_unlock(&every[i]->lock);
    }
    pthread_mutex_lock(&ends_lock);
    pthread_cond_broadcast(&ends);
    pthread_mutex_unlock(&ends_lock);
    return NULL;
}

static void *watcher(void *it) {
    (void)it;
    for (;;) {
        sleep(1);
        uint64_t still = 0;
        for (uint64_t i = 0; i < atomic_load(&file->entries); i++) {
            struct connection *c = every[i];
            uint64_t moved = c->moved, now = now_ns();
            // What is held with all bytes over does not move.
            if (c->fd < 0 || atomic_load(&pausing) || (hold && bytes && c->sent == bytes && c->received == bytes) || now - moved < (uint64_t)watch * 1000000000)
                continue;
            still++;
            fprintf(stderr, "traffic: connection %llu (%c%s) has not moved for %d s: sent %llu, received %llu%s%s\n", (unsigned long long)c->number, c->kind,
                    c->edge ? ", edge-triggered" : c->threads ? ", blocking" : "", watch, (unsigned long long)c->sent, (unsigned long long)c->received,
                    c->send_done ? ", shut down" : "", c->recv_done ? ", end read" : "");
        }
        if (still)
            _exit(5);
    }
}

static uint64_t number_of(const char *text, char end) {
    char *rest;
    errno = 0;
    uint64_t n = strtoull(text, &rest, 0);
    if (errno || rest == text || *rest != end) {
        fprintf(stderr, "traffic: %s is no number\n", text);
        exit(2);
    }
    return n;
}

static void map_file(const char *path) {
    int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : memfd_create("traffic", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof *file))
        die(path ? path : "memfd");
    file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        die("mmap");
    close(fd);
    atomic_store(&file->pid, (uint64_t)getpid());
}

int main(int argc, char **argv) {
    const char *path = NULL;
    static sigset_t signals;
    int option;
    while ((option = getopt(argc, argv, "n:k:b:s:o:hrf:w:x:")) != -1)
        switch (option) {
        case 'n': connections = number_of(optarg, 0); break;
        case 'k': kinds = optarg; break;
        case 'b': bytes = number_of(optarg, 0); break;
        case 's': seed = number_of(optarg, 0); break;
        case 'o': first_round = number_of(optarg, 0); break;
        case 'h': hold = 1; break;
        case 'r': resist = 1; break;
        case 'f': path = optarg; break;
        case 'w': watch = (int)number_of(optarg, 0); break;
        case 'x': spoil_index = number_of(optarg, ':'), spoil_offset = number_of(strchr(optarg, ':') + 1, 0); break;
        default: return 2;
        }
    if (argc - optind != 3 || !connections || !*kinds || strspn(kinds, "bspqirBSPQIR") != strlen(kinds) || (bytes && resist))
        return fprintf(stderr, "usage: the beginning of traffic.c\n"), 2;
    client = !strcmp(argv[optind], "client");
    address = argv[optind + 1], port = argv[optind + 2];
    map_file(path);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if ((stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || !(lost = calloc(connections + MAX_CONNECTIONS, sizeof *lost)))
        die("memory");
    start_thread(stopper, &signals);
    if (watch)
        start_thread(watcher, NULL);

    struct addrinfo *to = resolved();
    uint64_t to_end = connections;
    int listener = -1, on = 1;
    if (client) {
        uint32_t *rounds = calloc(connections, sizeof *rounds);
        for (uint64_t i = 0; i < connections; i++)
            while (!connect_once(to, i + connections * first_round)) {
                if (!resist || atomic_load(&stopping))
                    die("connect");
                sleep_until(now_ns() + 50000000);
            }
        pthread_mutex_lock(&ends_lock);
        while (rounds && resist && !atomic_load(&stopping)) {
            if (!lost_count) {
                pthread_cond_wait(&ends, &ends_lock);
                continue;
            }
            uint32_t index = lost[--lost_count];
            pthread_mutex_unlock(&ends_lock);
            rounds[index]++;
            while (!connect_once(to, index + connections * (first_round + rounds[index])) && !atomic_load(&stopping))
                sleep_until(now_ns() + 50000000);
            pthread_mutex_lock(&ends_lock);
        }
        pthread_mutex_unlock(&ends_lock);
        to_end = resist ? atomic_load(&file->entries) : connections;
    } else {
        listener = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(listener, to->ai_addr, to->ai_addrlen) ||
            listen(listener, 4096))
            die("listen");
        start_thread(acceptor, &listener);
    }
    pthread_mutex_lock(&ends_lock);
    while (client || !resist ? ended_count < to_end : !atomic_load(&stopping) || ended_count < atomic_load(&file->entries))
        pthread_cond_wait(&ends, &ends_lock);
    pthread_mutex_unlock(&ends_lock);
    uint64_t sent = 0, received = 0;
    for (uint64_t i = 0; i < atomic_load(&file->entries); i++) {
        sent += atomic_load(&file->entry[i].sent);
        received += atomic_load(&file->entry[i].received);
    }
    printf("%llu connections, sent %llu, received %llu\n", (unsigned long long)atomic_load(&file->entries), (unsigned long long)sent,
           (unsigned long long)received);
    return atomic_load(&failed) ? 4 : 0;
}
