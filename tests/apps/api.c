/* A program that asks what becomes of its connections, and says for how long its threads poll
 * (include/netacc.h), for tests/apps/api.sh.
 *
 *   api errors              what is no connection, and what is none of the library's
 *   api server              says its port, and echoes one connection to its end
 *   api client PORT [last]  goes to and fro until the library has decided; "last": by then it uses
 *                           an option that only TCP has, and goes on
 *   api client PORT poll    the same, for one thread that polls, and then does not; API_COUNT is run
 *                           before, between and behind
 *   api poll                says for how long threads poll
 */
#include <netacc.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void tell(const char *what, int fd)
{
    struct netacc_info info;

    errno = E2BIG;
    if (netacc_get_info(fd, &info) != 0) {
        printf("%s: -1 %s, %d\n", what, strerror(errno), netacc_is_accelerated(fd));
        return;
    }
    printf("%s: %d %s/%s %s%s\n", what, netacc_is_accelerated(fd), netacc_path_name(info.tx_path),
           netacc_path_name(info.rx_path), info.reason_name, errno == E2BIG ? "" : ", errno is lost");
    if (info.reason_text[0] == '\0' || (info.version == 0) != (info.reason == NETACC_REASON_ABSENT))
        printf("%s: version %u, reason %u, text \"%s\"\n", what, info.version, info.reason, info.reason_text);
}

static int bound(struct sockaddr_in *at)
{
    socklen_t length = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    memset(at, 0, sizeof *at);
    at->sin_family = AF_INET;
    /* In the rig an address of the device's. */
    at->sin_addr.s_addr = inet_addr(getenv("API_ADDRESS") ? getenv("API_ADDRESS") : "127.0.0.1");
    if (bind(fd, (struct sockaddr *)at, sizeof *at) != 0 || listen(fd, 5) != 0 ||
        getsockname(fd, (struct sockaddr *)at, &length) != 0) {
        perror("listen");
        exit(1);
    }
    return fd;
}

static int connected(struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (connect(fd, (struct sockaddr *)to, sizeof *to) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static volatile sig_atomic_t of_handler;
static int asked;
static void handler(int signal)
{
    (void)signal;
    of_handler = netacc_is_accelerated(asked);
}

static void errors(void)
{
    struct sockaddr_in at;
    int listener = bound(&at), client = connected(&at), pair[2], udp = socket(AF_INET, SOCK_DGRAM, 0);

    tell("closed", 1000);
    tell("negative", -1);
    tell("file", open("/dev/null", O_RDONLY));
    tell("unconnected", socket(AF_INET, SOCK_STREAM, 0));
    tell("listener", listener);
    tell("udp", udp);
    if (connect(udp, (struct sockaddr *)&at, sizeof at) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
        tell("connected udp", udp);
        tell("unix", pair[0]);
    }
    tell("new", client);
    asked = client;
    of_handler = 7;
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    printf("in a handler: %d\n", (int)of_handler);
}

static int to_and_fro(int fd)
{
    char byte = 'x';

    return write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1;
}

/* Until it is accelerated both ways, or there is a reason that is for good, or nobody answers. With
 * API_SECONDS that long until it is accelerated: between hosts a server is looked for again and
 * again, and who has not found it has a reason meanwhile. */
static void decide(int fd)
{
    const char *seconds = getenv("API_SECONDS");
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 20);
    struct netacc_info info;

    while (time(NULL) < end && to_and_fro(fd) && netacc_get_info(fd, &info) == 0) {
        if (info.version == 0 || (info.tx_path != NETACC_TCP && info.rx_path != NETACC_TCP))
            return;
        if (!seconds && info.reason != NETACC_REASON_NOT_STARTED && info.reason > NETACC_REASON_NEGOTIATING)
            return;
    }
}

static void tell_poll(const char *what, int microseconds)
{
    int result;

    errno = E2BIG;
    result = netacc_set_thread_poll(microseconds);
    printf("%s: %d%s%s, %d\n", what, result, result ? " " : "", result ? strerror(errno) : "", netacc_thread_poll());
    if (result == 0 && errno != E2BIG)
        printf("%s: errno is lost\n", what);
}

static void *other_thread(void *unused)
{
    printf("another thread: %d\n", netacc_thread_poll());
    tell_poll("another thread, 9", 9);
    return unused;
}

static void say_poll(void)
{
    pthread_t thread;
    pid_t child;

    printf("at first: %d\n", netacc_thread_poll());
    tell_poll("none", 0);
    tell_poll("50", 50);
    tell_poll("-2", -2);
    if (pthread_create(&thread, NULL, other_thread, NULL) == 0)
        pthread_join(thread, NULL);
    printf("this one: %d\n", netacc_thread_poll());
    fflush(stdout);
    child = fork();
    if (child == 0) {
        printf("a child: %d\n", netacc_thread_poll());
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    tell_poll("as configured", NETACC_POLL_AS_CONFIGURED);
}

static void count(const char *when)
{
    printf("%s\n", when);
    fflush(stdout);
    if (system(getenv("API_COUNT")) != 0)
        printf("API_COUNT has failed\n");
}

/* An answer may be there at the first look; with the last waits it is never. */
static void wait_often(int fd)
{
    struct pollfd nothing;
    int i;

    for (i = 0; i < 200; i++)
        to_and_fro(fd);
    nothing.fd = fd;
    nothing.events = POLLIN;
    for (i = 0; i < 5; i++)
        poll(&nothing, 1, 2);
}

static void use(int fd, const char *how)
{
    int on = 1, i;

    decide(fd);
    tell("client", fd);
    if (how != NULL && strcmp(how, "poll") == 0) {
        count("begins");
        wait_often(fd);
        count("polls");
        netacc_set_thread_poll(0);
        wait_often(fd);
        count("sleeps");
        netacc_set_thread_poll(NETACC_POLL_AS_CONFIGURED);
        wait_often(fd);
        count("polls again");
        return;
    }
    if (how == NULL)
        return;
    if (setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) != 0)
        perror("SO_OOBINLINE");
    for (i = 0; i < 100; i++)
        to_and_fro(fd);
    tell("client, later", fd);
}

int main(int argc, char **words)
{
    struct sockaddr_in at;
    int fd, listener;
    char byte;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(words[1], "errors") == 0) {
        errors();
    } else if (argc == 2 && strcmp(words[1], "poll") == 0) {
        say_poll();
    } else if (argc == 2 && strcmp(words[1], "server") == 0) {
        listener = bound(&at);
        printf("%d\n", ntohs(at.sin_port));
        fd = accept(listener, NULL, NULL);
        while (read(fd, &byte, 1) == 1) {
            if (byte == '?')
                tell("server", fd);
            if (write(fd, &byte, 1) != 1)
                break;
        }
    } else if (argc >= 3 && strcmp(words[1], "client") == 0) {
        memset(&at, 0, sizeof at);
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = inet_addr(getenv("API_ADDRESS") ? getenv("API_ADDRESS") : "127.0.0.1");
        at.sin_port = htons((uint16_t)atoi(words[2]));
        fd = connected(&at);
        use(fd, argc > 3 ? words[3] : NULL);
        if (write(fd, "?", 1) != 1 || read(fd, &byte, 1) != 1)
            perror("the server");
    }
    return 0;
}
