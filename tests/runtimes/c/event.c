/* libevent: an echo server of bufferevents. */
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <stdlib.h>

static void on_read(struct bufferevent *b, void *x) { (void)x; evbuffer_add_buffer(bufferevent_get_output(b), bufferevent_get_input(b)); }
static void on_event(struct bufferevent *b, short what, void *x) { (void)x; if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) bufferevent_free(b); }

static void on_connection(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n, void *x) {
    (void)a; (void)n; (void)x;
    struct bufferevent *b = bufferevent_socket_new(evconnlistener_get_base(l), fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(b, on_read, NULL, on_event, NULL);
    bufferevent_enable(b, EV_READ | EV_WRITE);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct event_base *base = event_base_new();
    if (!evconnlistener_new_bind(base, on_connection, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE, 64, (struct sockaddr *)&at, sizeof at)) return 1;
    return event_base_dispatch(base);
}
