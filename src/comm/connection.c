/* comm/connection.c -- see connection.h. Notes are three 32-bit words (kind, rank it is about, bytes) and a text, in the
 * byte order of the network; sockets never block. */
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

static void add_address(HeartbeatEndpoint *d, int family, const void *at)
{
    if (d->n == HEARTBEAT_ADDRESSES) return;
    d->family[d->n] = (uint8_t)family;
    memcpy(d->address[d->n++], at, family == 4 ? 4 : 16);
}

/* What others may reach this host by: IPv4 before IPv6, itself last. */
static void add_addresses(HeartbeatEndpoint *d)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) all = NULL;
    for (int family = 4; family <= 6; family += 2)
        for (struct ifaddrs *a = all; a; a = a->ifa_next) {
            if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || a->ifa_flags & IFF_LOOPBACK) continue;
            struct sockaddr_in  *v4 = (struct sockaddr_in *)a->ifa_addr;
            struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)a->ifa_addr;
            if (family == 4 && v4->sin_family == AF_INET) add_address(d, 4, &v4->sin_addr);
            if (family == 6 && v6->sin6_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
                add_address(d, 6, &v6->sin6_addr);
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

int connection_listen(HeartbeatEndpoint *door, bool local)
{
    struct in_addr      here = { .s_addr = htonl(INADDR_LOOPBACK) }, any = { .s_addr = htonl(INADDR_ANY) };
    struct sockaddr_in  v4 = { .sin_family = AF_INET, .sin_addr = local ? here : any };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any }, got;
    socklen_t           n = sizeof got;
    int fd = local ? -1 : listen_on(AF_INET6, &v6, sizeof v6);
    if (fd < 0) fd = listen_on(AF_INET, &v4, sizeof v4);
    if (fd < 0) return -1;
    if (getsockname(fd, (struct sockaddr *)&got, &n)) { close(fd); return -1; }
    door->port = got.sin6_port;                    /* at the same place in both kinds of address */
    door->n = 0;
    if (!local) add_addresses(door);
    add_address(door, 4, &here);
    return fd;
}

static void set_up(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int connection_connect(const HeartbeatEndpoint *door, int address, int wait_ms)
{
    struct sockaddr_in  v4 = { .sin_family = AF_INET, .sin_port = door->port };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = door->port };
    bool four = door->family[address] == 4;
    memcpy(&v4.sin_addr, door->address[address], 4);
    memcpy(&v6.sin6_addr, door->address[address], 16);
    int fd = socket(four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), bad = 0;
    if (fd < 0) return -1;
    socklen_t n = sizeof bad;
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int rc = four ? connect(fd, (struct sockaddr *)&v4, sizeof v4)
                  : connect(fd, (struct sockaddr *)&v6, sizeof v6);
    if (rc && (errno != EINPROGRESS || poll(&p, 1, wait_ms) != 1 ||
               getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &n) || bad)) { close(fd); return -1; }
    set_up(fd);
    return fd;
}

int connection_accept(int door)
{
    int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) set_up(fd);
    return fd;
}

void connection_close(Connection *w)
{
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}

/* ---- notes ---- */

bool connection_send(Connection *w, MessageKind kind, int about, const void *text, int bytes, int wait_ms)
{
    uint8_t  out[3 * 4 + MESSAGE_TEXT];
    size_t   at = 0, n = 12 + (size_t)bytes;
    uint32_t head[3] = { htonl((uint32_t)kind), htonl((uint32_t)about), htonl((uint32_t)bytes) };
    if (w->fd < 0 || bytes > MESSAGE_TEXT) return false;
    memcpy(out, head, 12);
    if (bytes) memcpy(out + 12, text, (size_t)bytes);
    while (at < n) {
        ssize_t k = send(w->fd, out + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) { at += (size_t)k; continue; }
        if (k < 0 && errno == EINTR) continue;
        if (k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
        if (!at && !wait_ms) return true;          /* a full pipe: this note is not missed */
        struct pollfd p = { .fd = w->fd, .events = POLLOUT };
        if (poll(&p, 1, wait_ms ? wait_ms : 1000) != 1) return false;
    }
    return true;
}

int connection_receive(Connection *w, Message *n)
{
    uint32_t head[3];
    size_t   room = sizeof w->in - w->have;
    if (w->fd < 0) return -1;
    ssize_t k = room ? recv(w->fd, w->in + w->have, room, MSG_DONTWAIT) : 1;
    bool gone = k == 0 || (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    if (k > 0 && room) w->have += (size_t)k;
    if (w->have < 12) return gone ? -1 : 0;
    memcpy(head, w->in, 12);
    *n = (Message){ .kind = (int)ntohl(head[0]), .about = (int)ntohl(head[1]), .bytes = (int)ntohl(head[2]) };
    if (n->kind < 0 || n->kind >= MSG_KINDS || n->bytes < 0 || n->bytes > MESSAGE_TEXT) return -1;
    size_t all = 12 + (size_t)n->bytes;
    if (w->have < all) return gone ? -1 : 0;
    memcpy(n->text, w->in + 12, (size_t)n->bytes);
    memmove(w->in, w->in + all, w->have - all);
    w->have -= all;
    w->heard = clock_now();
    return 1;
}
