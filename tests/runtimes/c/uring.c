/* liburing: an echo server. "poll": it waits by POLL_ADD and moves the bytes by recv and send;
 * "all": the ring does everything. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPT, READ, WRITE };
struct end { int fd, what, n, done; char buf[16384]; };
static struct io_uring ring;

static struct io_uring_sqe *entry(struct end *e, int what) {
    struct io_uring_sqe *s = io_uring_get_sqe(&ring);
    if (!s) abort();
    e->what = what;
    return s;
}
static void ask(struct end *e, int all) {
    struct io_uring_sqe *s = entry(e, READ);
    if (all) io_uring_prep_recv(s, e->fd, e->buf, sizeof e->buf, 0); else io_uring_prep_poll_add(s, e->fd, POLLIN);
    io_uring_sqe_set_data(s, e);
}
static void over(struct end *e) { close(e->fd); free(e); }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int all = !strcmp(argv[2], "all"), one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64)) return 1;
    if (io_uring_queue_init(256, &ring, 0)) return 77;
    struct end door = { .fd = listener };
    struct io_uring_sqe *s = entry(&door, ACCEPT);
    io_uring_prep_poll_add(s, listener, POLLIN);
    io_uring_sqe_set_data(s, &door);
    for (;;) {
        struct io_uring_cqe *c;
        if (io_uring_submit_and_wait(&ring, 1) < 0 && errno != EINTR) return 1;
        while (!io_uring_peek_cqe(&ring, &c)) {
            struct end *e = io_uring_cqe_get_data(c);
            int r = c->res;
            io_uring_cqe_seen(&ring, c);
            if (e->what == ACCEPT) {
                struct end *new = calloc(1, sizeof *new);
                new->fd = accept4(listener, NULL, NULL, all ? 0 : SOCK_NONBLOCK);
                ask(new, all);
                s = entry(e, ACCEPT);
                io_uring_prep_poll_add(s, listener, POLLIN);
                io_uring_sqe_set_data(s, e);
            } else if (!all) {
                for (;;) {
                    int n = recv(e->fd, e->buf, sizeof e->buf, MSG_DONTWAIT), sent = 0;
                    if (n < 0 && errno == EAGAIN) { ask(e, all); break; }
                    if (n <= 0) { over(e); break; }
                    while (sent < n) {
                        int m = send(e->fd, e->buf + sent, n - sent, MSG_NOSIGNAL);
                        if (m > 0) sent += m; else if (errno != EAGAIN) break;
                    }
                }
            } else if (r <= 0) {
                over(e);
            } else if (e->what == READ) {
                e->n = r; e->done = 0;
                s = entry(e, WRITE);
                io_uring_prep_send(s, e->fd, e->buf, e->n, MSG_NOSIGNAL);
                io_uring_sqe_set_data(s, e);
            } else if ((e->done += r) < e->n) {
                s = entry(e, WRITE);
                io_uring_prep_send(s, e->fd, e->buf + e->done, e->n - e->done, MSG_NOSIGNAL);
                io_uring_sqe_set_data(s, e);
            } else {
                ask(e, all);
            }
        }
    }
}
