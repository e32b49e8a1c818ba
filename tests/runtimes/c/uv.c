/* libuv: an echo server. */
#include <stdlib.h>
#include <uv.h>

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *b) { (void)h; *b = uv_buf_init(malloc(n), n); }
static void on_closed(uv_handle_t *h) { free(h); }
static void on_written(uv_write_t *w, int status) { (void)status; free(w->data); free(w); }

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    if (n > 0) {
        uv_write_t *w = malloc(sizeof *w);
        uv_buf_t out = uv_buf_init(b->base, n);
        w->data = b->base;
        uv_write(w, s, &out, 1, on_written);
        return;
    }
    free(b->base);
    if (n < 0) uv_close((uv_handle_t *)s, on_closed);
}

static void on_connection(uv_stream_t *listener, int status) {
    if (status < 0) abort();
    uv_tcp_t *c = malloc(sizeof *c);
    uv_tcp_init(listener->loop, c);
    if (uv_accept(listener, (uv_stream_t *)c)) abort();
    uv_read_start((uv_stream_t *)c, on_alloc, on_read);
}

int main(int argc, char **argv) {
    uv_tcp_t listener;
    struct sockaddr_in at;
    if (argc < 2) return 2;
    uv_tcp_init(uv_default_loop(), &listener);
    uv_ip4_addr("127.0.0.1", atoi(argv[1]), &at);
    if (uv_tcp_bind(&listener, (struct sockaddr *)&at, 0) || uv_listen((uv_stream_t *)&listener, 64, on_connection)) return 1;
    return uv_run(uv_default_loop(), UV_RUN_DEFAULT);
}
