/* A server that makes a child by a system call of its own for its first connection, as vsftpd does
 * (clone; with an argument: fork). The child sets its group, for which libc goes through its list
 * of threads, then answers. Status 0: the client has its answer. What hangs is ended after ten
 * seconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long raw_fork(void) {
#ifdef SYS_fork
  return syscall(SYS_fork);
#else
  return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

int main(int argc, char **argv) {
  (void)argv;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof a;
  int listener = socket(AF_INET, SOCK_STREAM, 0), status = 1;
  if (bind(listener, (void *)&a, size) || listen(listener, 1) || getsockname(listener, (void *)&a, &size)) return 2;
  if (fork() == 0) {
    char answer;
    alarm(10);
    int c = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c, (void *)&a, size) || read(c, &answer, 1) != 1) _exit(1);
    _exit(0);
  }
  int c = accept(listener, 0, 0);
  long child = argc > 1 ? raw_fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    alarm(10);
    if (setgid(getgid()) || write(c, "x", 1) != 1) _exit(1);
    _exit(0);
  }
  close(c);
  for (int n = 0; n < 2; n++)
    if (wait(&status) < 0 || status) return 1;
  return 0;
}
