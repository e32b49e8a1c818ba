// A program that is over at once: `start` does nothing, `start SOURCE ADDRESS PORT` sends four
// bytes in four calls on one connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc < 4)
    return 0;
  struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
  inet_pton(AF_INET, argv[1], &from.sin_addr);
  inet_pton(AF_INET, argv[2], &to.sin_addr);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from) || connect(fd, (struct sockaddr *)&to, sizeof to))
    return 1;
  for (int i = 0; i < 4; i++)
    if (send(fd, "x", 1, 0) != 1)
      return 2;
  return close(fd) ? 3 : 0;
}
