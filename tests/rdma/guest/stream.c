// stream server|client ADDRESS: messages of 64 KiB over RDMA to a server that sends them back.
//
// Neither end sends before both have seen ESTABLISHED: the client waits until the server has told
// `accepted`, the server only answers. siw needs both. Its acceptor does not look at what arrives
// between its MPA reply and the end of its accept before something else arrives; its connector
// takes anything right behind the MPA reply for a broken handshake.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define SIZE 65536
#define MESSAGES 16
#define TOLD "/rig/told/"

static char in[SIZE], out[SIZE];
static struct ibv_mr *in_mr, *out_mr;

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void tell(const char *path) {
    int file = open(path, O_CREAT | O_WRONLY, 0666);
    check(file < 0, path);
    close(file);
}

static void await(const char *path, const char *or_end) {
    while (access(path, F_OK)) {
        if (!access(or_end, F_OK) && access(path, F_OK)) {
            fprintf(stderr, "%s, without %s\n", or_end, path);
            exit(1);
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static void register_memory(struct rdma_cm_id *id) {
    check(!(in_mr = rdma_reg_msgs(id, in, SIZE)), "rdma_reg_msgs");
    check(!(out_mr = rdma_reg_msgs(id, out, SIZE)), "rdma_reg_msgs");
    check(rdma_post_recv(id, NULL, in, SIZE, in_mr), "rdma_post_recv");
}

static void completed(struct ibv_wc *completion, const char *what) {
    if (completion->status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(completion->status));
        exit(1);
    }
}

static void send_message(struct rdma_cm_id *id) {
    struct ibv_wc completion;
    check(rdma_post_send(id, NULL, out, SIZE, out_mr, 0), "rdma_post_send");
    check(rdma_get_send_comp(id, &completion) != 1, "rdma_get_send_comp");
    completed(&completion, "send");
}

static void receive_message(struct rdma_cm_id *id) {
    struct ibv_wc completion;
    check(rdma_get_recv_comp(id, &completion) != 1, "rdma_get_recv_comp");
    completed(&completion, "receive");
    check(completion.byte_len != SIZE && (errno = EMSGSIZE), "receive");
}

static void serve(struct rdma_cm_id *listener) {
    struct rdma_cm_id *id;
    check(rdma_listen(listener, 1), "rdma_listen");
    tell(TOLD "up");
    check(rdma_get_request(listener, &id), "rdma_get_request");
    register_memory(id);
    check(rdma_accept(id, NULL), "rdma_accept");
    tell(TOLD "accepted");
    for (int i = 0; i < MESSAGES; i++) {
        receive_message(id);
        memcpy(out, in, SIZE);
        check(i + 1 < MESSAGES && rdma_post_recv(id, NULL, in, SIZE, in_mr), "rdma_post_recv");
        send_message(id);
    }
    // Whoever disconnects first takes from the other what is on its way, completions of sends among
    // it.
    tell(TOLD "answered");
    await(TOLD "received", TOLD "client-ended");
    rdma_disconnect(id);
}

static void use(struct rdma_cm_id *id) {
    register_memory(id);
    check(rdma_connect(id, NULL), "rdma_connect");
    await(TOLD "accepted", TOLD "server-ended");
    for (int i = 0; i < MESSAGES; i++) {
        for (int j = 0; j < SIZE; j++)
            out[j] = (char)random();
        send_message(id);
        receive_message(id);
        check(memcmp(in, out, SIZE) && (errno = EBADMSG), "echo");
        check(i + 1 < MESSAGES && rdma_post_recv(id, NULL, in, SIZE, in_mr), "rdma_post_recv");
    }
    await(TOLD "answered", TOLD "server-ended");
    tell(TOLD "received");
    rdma_disconnect(id);
    printf("%d\n", SIZE * MESSAGES);
}

int main(int argc, char **argv) {
    struct rdma_cm_id *id;
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *address;
    struct ibv_qp_init_attr attributes = {.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}, .sq_sig_all = 1};
    if (argc != 3)
        return 2;
    int server = !strcmp(argv[1], "server");
    hints.ai_flags = server ? RAI_PASSIVE : 0;
    check(rdma_getaddrinfo(argv[2], "7471", &hints, &address), "rdma_getaddrinfo");
    check(rdma_create_ep(&id, address, NULL, &attributes), "rdma_create_ep");
    (server ? serve : use)(id);
    return 0;
}
