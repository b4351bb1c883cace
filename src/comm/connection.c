/* comm/connection.c -- see connection.h. A message is three 32-bit words in network byte order (kind, rank
 * that it is about, bytes) and a text; sockets never block. */
#define _GNU_SOURCE                    /* accept4 */
#include "comm/connection.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- connections ---- */

static void add_address(HeartbeatEndpoint *e, int family, const void *at)
{
    if (e->n == HEARTBEAT_ADDRESSES) return;
    e->family[e->n] = (uint8_t)family;
    memcpy(e->address[e->n++], at, family == 4 ? 4 : 16);
}

/* The addresses of this host's interfaces that are up: IPv4 before IPv6, without loopback. */
static void add_addresses(HeartbeatEndpoint *e)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) all = NULL;
    for (int family = 4; family <= 6; family += 2)
        for (struct ifaddrs *a = all; a; a = a->ifa_next) {
            if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || a->ifa_flags & IFF_LOOPBACK) continue;
            struct sockaddr_in  *v4 = (struct sockaddr_in *)a->ifa_addr;
            struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)a->ifa_addr;
            if (family == 4 && v4->sin_family == AF_INET) add_address(e, 4, &v4->sin_addr);
            if (family == 6 && v6->sin6_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
                add_address(e, 6, &v6->sin6_addr);
        }
    if (all) freeifaddrs(all);
}

static int listen_on(int family, const void *address, socklen_t n)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), off = 0;
    if (fd < 0) return -1;
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, address, n) && !listen(fd, 1024)) return fd;
    close(fd);
    return -1;
}

int connection_listen(HeartbeatEndpoint *endpoint, bool local)
{
    struct in_addr      here = { .s_addr = htonl(INADDR_LOOPBACK) }, any = { .s_addr = htonl(INADDR_ANY) };
    struct sockaddr_in  v4 = { .sin_family = AF_INET, .sin_addr = local ? here : any };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any }, got;
    socklen_t           n = sizeof got;
    int fd = local ? -1 : listen_on(AF_INET6, &v6, sizeof v6);
    if (fd < 0) fd = listen_on(AF_INET, &v4, sizeof v4);
    if (fd < 0) return -1;
    if (getsockname(fd, (struct sockaddr *)&got, &n)) { close(fd); return -1; }
    endpoint->port = got.sin6_port;                /* the port has the same offset in both address types */
    endpoint->n = 0;
    if (!local) add_addresses(endpoint);
    add_address(endpoint, 4, &here);
    return fd;
}

static void disable_nagle(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int connection_connect(const HeartbeatEndpoint *endpoint, int address, int wait_ms)
{
    struct sockaddr_in  v4 = { .sin_family = AF_INET, .sin_port = endpoint->port };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = endpoint->port };
    bool four = endpoint->family[address] == 4;
    memcpy(&v4.sin_addr, endpoint->address[address], 4);
    memcpy(&v6.sin6_addr, endpoint->address[address], 16);
    int fd = socket(four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), bad = 0;
    if (fd < 0) return -1;
    socklen_t n = sizeof bad;
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int rc = four ? connect(fd, (struct sockaddr *)&v4, sizeof v4)
                  : connect(fd, (struct sockaddr *)&v6, sizeof v6);
    if (rc && (errno != EINPROGRESS || poll(&p, 1, wait_ms) != 1 ||
               getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &n) || bad)) { close(fd); return -1; }
    disable_nagle(fd);
    return fd;
}

int connection_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) disable_nagle(fd);
    return fd;
}

void connection_close(Connection *c)
{
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

/* ---- messages ---- */

bool connection_send(Connection *c, MessageKind kind, int about, const void *text, int bytes, int wait_ms)
{
    uint8_t  out[3 * 4 + MESSAGE_TEXT];
    size_t   at = 0, n = 12 + (size_t)bytes;
    uint32_t head[3] = { htonl((uint32_t)kind), htonl((uint32_t)about), htonl((uint32_t)bytes) };
    if (c->fd < 0 || bytes > MESSAGE_TEXT) return false;
    memcpy(out, head, 12);
    if (bytes) memcpy(out + 12, text, (size_t)bytes);
    while (at < n) {
        ssize_t k = send(c->fd, out + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) { at += (size_t)k; continue; }
        if (k < 0 && errno == EINTR) continue;
        if (k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
        if (!at && !wait_ms) return true;          /* the socket is full: skip this message */
        struct pollfd p = { .fd = c->fd, .events = POLLOUT };
        if (poll(&p, 1, wait_ms ? wait_ms : 1000) != 1) return false;
    }
    return true;
}

int connection_receive(Connection *c, Message *m)
{
    uint32_t head[3];
    size_t   space = sizeof c->in - c->buffered;
    if (c->fd < 0) return -1;
    ssize_t k = space ? recv(c->fd, c->in + c->buffered, space, MSG_DONTWAIT) : 1;
    bool closed = k == 0 || (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    if (k > 0 && space) c->buffered += (size_t)k;
    if (c->buffered < 12) return closed ? -1 : 0;
    memcpy(head, c->in, 12);
    *m = (Message){ .kind = (int)ntohl(head[0]), .about = (int)ntohl(head[1]), .bytes = (int)ntohl(head[2]) };
    if (m->kind < 0 || m->kind >= MSG_KINDS || m->bytes < 0 || m->bytes > MESSAGE_TEXT) return -1;
    size_t all = 12 + (size_t)m->bytes;
    if (c->buffered < all) return closed ? -1 : 0;
    memcpy(m->text, c->in + 12, (size_t)m->bytes);
    memmove(c->in, c->in + all, c->buffered - all);
    c->buffered -= all;
    c->last_message = clock_now();
    return 1;
}
