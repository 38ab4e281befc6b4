// A door before Triton's HTTP port. Triton 2.51 allocates what the shape of a request says, before it looks at the data: a request of 120 bytes ends
// it. The door reads every inference request whole, compares shapes, data and lengths, and passes it on or refuses it in one line of JSON.
//
//   door LISTENER PORT MOST_BYTES
//
// LISTENER is the number of an inherited socket that listens, PORT that of Triton on 127.0.0.1, MOST_BYTES the length of the longest request. One thread
// waits for all connections. A client's requests are answered one after another; each client has a connection of its own to Triton.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <unordered_set>

#include "body.h"
#include "http.h"

namespace door {
namespace {

constexpr std::size_t kRead = 256 << 10, kMostWaiting = 4 << 20;
constexpr std::uint32_t kIn = EPOLLIN, kOut = EPOLLOUT;
constexpr double kHeadS = 30, kIdleBodyS = 60, kIdleS = 600;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::size_t most_bytes = 256 << 20, most_total, held_total = 0;
sockaddr_in upstream_address{};
int poller;

struct Connection;
struct End {  // one of the two sockets of a connection
  End(Connection* owner, bool is_upstream) : of(owner), upstream(is_upstream) {}
  Connection* of;
  bool upstream;
  int fd = -1;
  std::uint32_t events = 0;
  std::string out;  // to be written
  std::size_t written = 0;
  bool Empty() const { return written == out.size(); }
};

struct Connection {
  enum State { kHead, kBody, kAnswer, kClosing } state = kHead;
  End client{this, false}, server{this, true};
  std::string in, body, answer_head;
  Head request;
  std::int64_t left = 0;
  std::optional<Chunks> chunks, answer_chunks;
  std::int64_t answer_left = -1;  // -1: until the server closes
  bool connected = false, client_ended = false, in_answer = false, answered = false, last = false, expects = false, answer_keeps = true;
  double since = Now();
};

std::unordered_set<Connection*> all, dead;

void Close(End* end) {
  if (end->fd >= 0) {
    close(end->fd);
    end->fd = -1;
    end->events = 0;
    end->out.clear();
    end->written = 0;
  }
}

void Drop(Connection* c) {
  if (dead.insert(c).second) {
    Close(&c->client);
    Close(&c->server);
    held_total -= std::min(held_total, c->body.size());
  }
}

void Watch(End* end, std::uint32_t events) {
  if (end->fd < 0 || end->events == events) return;
  epoll_event event{events, {.ptr = end}};
  epoll_ctl(poller, EPOLL_CTL_MOD, end->fd, &event);
  end->events = events;
}

void Add(End* end, std::uint32_t events) {
  epoll_event event{events, {.ptr = end}};
  epoll_ctl(poller, EPOLL_CTL_ADD, end->fd, &event);
  end->events = events;
}

bool Flush(End* end) {
  while (!end->Empty()) {
    ssize_t sent = send(end->fd, end->out.data() + end->written, end->out.size() - end->written, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == ENOTCONN;
    }
    end->written += std::size_t(sent);
  }
  if (end->written) {
    end->out.clear();
    if (end->out.capacity() > kRead) end->out.shrink_to_fit();
    end->written = 0;
  }
  return true;
}

void Update(Connection* c) {
  if (dead.count(c)) return;
  bool reads_client = !c->client_ended && c->state != Connection::kClosing && c->in.size() < kMostWaiting && c->state != Connection::kAnswer;
  reads_client = reads_client && c->client.out.size() - c->client.written < kMostWaiting;  // one that reads no answers is not read either
  bool reads_server = c->client.out.size() - c->client.written < kMostWaiting;
  Watch(&c->client, (reads_client ? kIn : 0) | (c->client.Empty() ? 0 : kOut));
  if (c->server.fd >= 0) Watch(&c->server, (reads_server ? kIn : 0) | (c->server.Empty() && c->connected ? 0 : kOut));
}

void Say(Connection* c, int status, const std::string& words, bool closes) {
  std::string text = "{\"error\":\"";
  for (unsigned char ch : words) {
    if (ch == '"' || ch == '\\') text += '\\';
    text += ch < 32 || ch > 126 ? '?' : char(ch);
  }
  text += "\"}";
  const char* reason = status == 400 ? "Bad Request" : status == 408 ? "Request Timeout" : status == 413 ? "Content Too Large" : status == 415 ? "Unsupported Media Type"
                     : status == 431 ? "Request Header Fields Too Large" : status == 501 ? "Not Implemented" : status == 502 ? "Bad Gateway" : "Service Unavailable";
  c->client.out += "HTTP/1.1 " + std::to_string(status) + " " + reason + "\r\nContent-Type: application/json\r\nContent-Length: " +
                   std::to_string(text.size()) + (closes ? "\r\nConnection: close\r\n\r\n" : "\r\n\r\n") + text;
  held_total -= std::min(held_total, c->body.size());
  c->body.clear();
  c->body.shrink_to_fit();
  c->state = closes ? Connection::kClosing : Connection::kHead;
  c->since = Now();
}

bool Connect(Connection* c) {
  c->server.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (c->server.fd < 0) return false;
  int one = 1;
  setsockopt(c->server.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  c->connected = connect(c->server.fd, reinterpret_cast<sockaddr*>(&upstream_address), sizeof upstream_address) == 0;
  if (!c->connected && errno != EINPROGRESS) {
    Close(&c->server);
    return false;
  }
  Add(&c->server, EPOLLIN | EPOLLOUT);
  return true;
}

// Returns whether a POST may be an inference request: all but those of Triton's other extensions, however the target is written.
bool IsInference(std::string_view target) {
  for (std::string_view other : {"/v2/repository/", "/v2/systemsharedmemory/", "/v2/cudasharedmemory/", "/v2/logging", "/v2/trace/"})
    if (target.substr(0, other.size()) == other) return false;
  return true;
}

// Parses the head at the front of `in`. Returns a refusal where the request is not to be passed on.
Refusal BeginRequest(Connection* c, std::string_view text) {
  c->request = {};
  if (!ParseHead(text, &c->request)) return {400, "the head of the request is malformed"};
  const auto& [method, target, version] = c->request.start;
  if (!IsToken(method) || target.empty() || (target[0] != '/' && target != "*") || (version != "HTTP/1.1" && version != "HTTP/1.0"))
    return {400, "expected a request of HTTP/1.1"};
  for (unsigned char ch : target)
    if (ch <= 32 || ch >= 127 || ch == '#') return {400, "the target of the request has a character that must be encoded"};
  for (const char* name : {"Content-Length", "Transfer-Encoding", "Inference-Header-Content-Length", "Content-Encoding", "Host"})
    if (c->request.Count(name) > 1) return {400, std::string("the request has two headers ") + name};
  const std::string *length = c->request.Find("Content-Length"), *coding = c->request.Find("Transfer-Encoding");
  if (length && coding) return {400, "the request has a Content-Length and a Transfer-Encoding"};
  c->left = 0;
  c->chunks.reset();
  if (coding) {
    if (!Same(*coding, "chunked")) return {501, "Transfer-Encoding: only chunked is known here"};
    c->chunks.emplace();
  } else if (length) {
    c->left = Digits(*length);
    if (c->left < 0) return {400, "Content-Length is no whole number"};
    if (std::size_t(c->left) > most_bytes) return {413, "the request is longer than the " + std::to_string(most_bytes) + " bytes that this server takes"};
  }
  if (const std::string* encoding = c->request.Find("Content-Encoding"); encoding && !Same(*encoding, "identity") && IsInference(target))
    return {415, "compressed requests are not taken here; send them plain, or by gRPC"};
  const std::string* connection = c->request.Find("Connection");
  c->last = version == "HTTP/1.0" ? !(connection && Same(*connection, "keep-alive")) : connection && Same(*connection, "close");
  const std::string* expect = c->request.Find("Expect");
  c->expects = expect && Same(*expect, "100-continue") && (c->left || coding);
  return {};
}

void Pass(Connection* c) {
  Refusal refusal;
  if (c->request.start[0] == "POST" && IsInference(c->request.start[1])) {
    const std::string* json = c->request.Find("Inference-Header-Content-Length");
    std::int64_t json_bytes = json ? Digits(*json) : std::int64_t(c->body.size());
    if (json_bytes < 0) refusal = {400, "Inference-Header-Content-Length is no whole number"};
    else if (!(json && json_bytes == 0)) refusal = CheckBody(c->body, std::size_t(json_bytes));  // 0: the body is the data of the only input
  } else if (c->body.size() > (16 << 20)) {
    refusal = {413, "only inference requests may be longer than 16 MiB"};
  }
  if (refusal) return Say(c, refusal.status, refusal.words, c->last);
  if (c->server.fd < 0 && !Connect(c)) return Say(c, 502, "the server does not answer", c->last);
  std::string& out = c->server.out;
  out += c->request.start[0] + " " + c->request.start[1] + " HTTP/1.1\r\n";
  for (const auto& [name, value] : c->request.headers)
    if (!Same(name, "Content-Length") && !Same(name, "Transfer-Encoding") && !Same(name, "Connection") && !Same(name, "Expect") && !Same(name, "Keep-Alive"))
      out += name + ": " + value + "\r\n";
  if (!c->body.empty() || c->request.start[0] == "POST" || c->request.start[0] == "PUT") out += "Content-Length: " + std::to_string(c->body.size()) + "\r\n";
  out += "\r\n";
  out += c->body;
  held_total -= std::min(held_total, c->body.size());
  c->body.clear();
  if (c->body.capacity() > kRead) c->body.shrink_to_fit();
  c->state = Connection::kAnswer;
  c->in_answer = c->answered = false;
  c->answer_head.clear();
  c->since = Now();
  if (c->connected && !Flush(&c->server)) Drop(c);
}

// Goes on with what the client has sent.
void Advance(Connection* c) {
  std::size_t used = 0;  // of `in`, which is cut once: cuts for each of many small parts would move the rest as often
  while (!dead.count(c)) {
    std::string_view in = std::string_view(c->in).substr(used);
    if (c->state == Connection::kHead) {
      if (in.substr(0, 2) == "\r\n") {  // empty lines before a request are allowed
        used += 2;
        continue;
      }
      std::size_t end = in.find("\r\n\r\n");
      if (end == in.npos) {
        if (in.size() > kMostHead) Say(c, 431, "the head of the request is too long", true);
        else if (c->client_ended) c->state = Connection::kClosing;
        break;
      }
      if (end > kMostHead) {
        Say(c, 431, "the head of the request is too long", true);
        break;
      }
      if (Refusal refusal = BeginRequest(c, in.substr(0, end))) {
        Say(c, refusal.status, refusal.words, true);
        break;
      }
      used += end + 4;
      c->state = Connection::kBody;
      c->since = Now();
      if (c->expects && used == c->in.size()) c->client.out += "HTTP/1.1 100 Continue\r\n\r\n";
    } else if (c->state == Connection::kBody) {
      std::size_t before = c->body.size(), taken = 0;
      bool done = false;
      if (c->chunks) {
        Chunks::Result result = c->chunks->Take(in, &taken, &c->body);
        if (result == Chunks::kBad) {
          Say(c, 400, "the chunks of the request are malformed", true);
          break;
        }
        done = result == Chunks::kDone;
      } else {
        taken = std::min<std::size_t>(in.size(), std::size_t(c->left));
        c->body.append(in.substr(0, taken));
        c->left -= std::int64_t(taken);
        done = c->left == 0;
      }
      used += taken;
      held_total += c->body.size() - before;
      if (taken) c->since = Now();
      if (c->body.size() > most_bytes || held_total > most_total) {
        bool own = c->body.size() > most_bytes;
        Say(c, own ? 413 : 503, own ? "the request is longer than this server takes" : "too many large requests at a time; try again", true);
        break;
      }
      if (!done) {
        if (c->client_ended) c->state = Connection::kClosing;
        break;
      }
      Pass(c);
    } else {
      break;
    }
  }
  if (dead.count(c)) return;
  c->in.erase(0, used);
  if (!Flush(&c->client)) return Drop(c);
  if (c->state == Connection::kClosing && c->client.Empty()) return Drop(c);
  Update(c);
}

void EndAnswer(Connection* c) {
  if (!c->answer_keeps) Close(&c->server), c->connected = false;
  c->state = c->last || c->client_ended ? Connection::kClosing : Connection::kHead;
  c->since = Now();
  if (c->client_ended && !c->in.empty()) c->state = Connection::kHead;
}

// Passes an answer's bytes on, and finds its end. False where it is malformed.
bool TakeAnswer(Connection* c, std::string_view bytes) {
  c->answered = true;
  while (!bytes.empty() || (c->in_answer && c->answer_left == 0 && !c->answer_chunks)) {
    if (c->state != Connection::kAnswer) return false;  // nobody asked
    if (!c->in_answer) {
      std::size_t before = c->answer_head.size();
      c->answer_head.append(bytes);
      std::size_t end = c->answer_head.find("\r\n\r\n", before > 3 ? before - 3 : 0);
      if (end == c->answer_head.npos) return c->answer_head.size() <= kMostHead;
      bytes.remove_prefix(end + 4 - before);
      c->answer_head.resize(end + 4);
      Head head;
      if (!ParseHead(std::string_view(c->answer_head).substr(0, end), &head)) return false;
      c->client.out += c->answer_head;
      c->answer_head.clear();
      std::int64_t status = Digits(head.start[1]);
      if (status >= 100 && status < 200) continue;
      const std::string *length = head.Find("Content-Length"), *coding = head.Find("Transfer-Encoding"), *connection = head.Find("Connection");
      c->answer_keeps = !(connection && Same(*connection, "close")) && head.start[0] == "HTTP/1.1";
      c->answer_chunks.reset();
      c->answer_left = -1;
      if (c->request.start[0] == "HEAD" || status == 204 || status == 304) c->answer_left = 0;
      else if (coding) c->answer_chunks.emplace();
      else if (length && (c->answer_left = Digits(*length)) < 0) return false;
      c->in_answer = true;
    } else if (c->answer_chunks) {
      std::size_t taken = 0;
      Chunks::Result result = c->answer_chunks->Take(bytes, &taken, nullptr);
      c->client.out.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      if (result == Chunks::kBad) return false;
      if (result == Chunks::kDone) EndAnswer(c);
    } else if (c->answer_left < 0) {
      c->client.out.append(bytes);
      bytes = {};
    } else {
      std::size_t some = std::min<std::size_t>(bytes.size(), std::size_t(c->answer_left));
      c->client.out.append(bytes.substr(0, some));
      bytes.remove_prefix(some);
      c->answer_left -= std::int64_t(some);
      if (c->answer_left == 0) EndAnswer(c);
    }
    if (c->state != Connection::kAnswer) break;
  }
  return bytes.empty();
}

void ReadClient(Connection* c) {
  static char buffer[kRead];
  ssize_t got = recv(c->client.fd, buffer, sizeof buffer, 0);
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) Drop(c);
    return;
  }
  if (c->state == Connection::kHead && c->in.empty()) c->since = Now();  // a head begins
  if (got == 0) c->client_ended = true;  // the client may still wait for its answer
  c->in.append(buffer, std::size_t(got));
  Advance(c);
}

void ServerEnded(Connection* c) {
  bool asked = c->state == Connection::kAnswer, fresh = asked && !c->answered;
  Close(&c->server);
  c->connected = false;
  if (!asked) return Update(c);
  if (fresh) {
    Say(c, 502, "the server ended before it answered; try again", c->last);
  } else if (c->in_answer && c->answer_left < 0 && !c->answer_chunks) {
    c->state = Connection::kClosing;  // the answer is as long as the connection
  } else {
    return Drop(c);
  }
  Advance(c);
}

void ReadServer(Connection* c) {
  static char buffer[kRead];
  ssize_t got = recv(c->server.fd, buffer, sizeof buffer, 0);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    return ServerEnded(c);
  }
  if (got == 0) return ServerEnded(c);
  c->since = Now();
  if (!TakeAnswer(c, {buffer, std::size_t(got)})) return Drop(c);
  Advance(c);
}

void Handle(End* end, std::uint32_t events) {
  Connection* c = end->of;
  if (dead.count(c) || end->fd < 0) return;
  if (!end->upstream) {
    if (events & (EPOLLERR | EPOLLHUP) && !(events & EPOLLIN)) return Drop(c);
    if (events & EPOLLOUT) {
      if (!Flush(end)) return Drop(c);
      if (c->state == Connection::kClosing && end->Empty()) return Drop(c);
    }
    if (events & EPOLLIN) return ReadClient(c);
    return Update(c);
  }
  if (!c->connected) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(end->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) return ServerEnded(c);
    c->connected = true;
  }
  if (events & EPOLLOUT && !Flush(end)) return ServerEnded(c);
  if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) return ReadServer(c);
  Update(c);
}

void EndSlow(double now) {
  for (Connection* c : all) {
    double patience = c->state == Connection::kHead ? (c->in.empty() ? kIdleS : kHeadS) : c->state == Connection::kBody ? kIdleBodyS : kIdleS;
    if (now - c->since <= patience) continue;
    if (c->state == Connection::kHead && c->in.empty()) Drop(c);
    else if (c->state == Connection::kHead || c->state == Connection::kBody) Say(c, 408, "the request came too slowly", true), Advance(c);
    else if (c->state == Connection::kClosing) Drop(c);
  }
}

int Main(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: door LISTENER PORT MOST_BYTES\n", stderr), 2;
  int listener = std::atoi(argv[1]), one = 1;
  upstream_address.sin_family = AF_INET;
  upstream_address.sin_port = htons(std::uint16_t(std::atoi(argv[2])));
  upstream_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  most_bytes = std::size_t(std::strtoull(argv[3], nullptr, 10));
  most_total = 4 * most_bytes;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signal(SIGPIPE, SIG_IGN);
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  std::size_t most_connections = std::min<std::size_t>(files.rlim_cur / 2 - 32, 16384);
  fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
  poller = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {.ptr = nullptr}};
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  double looked = Now();
  epoll_event events[256];
  while (true) {
    int count = epoll_wait(poller, events, 256, 1000);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr) {
        Handle(static_cast<End*>(events[i].data.ptr), events[i].events);
        continue;
      }
      for (int fd; (fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        if (all.size() >= most_connections) {
          close(fd);
          continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        auto* c = new Connection;
        c->client.fd = fd;
        all.insert(c);
        Add(&c->client, EPOLLIN);
      }
    }
    if (double now = Now(); now - looked > 1) EndSlow(now), looked = now;
    for (Connection* c : dead) all.erase(c), delete c;
    dead.clear();
  }
}

}  // namespace
}  // namespace door

int main(int argc, char** argv) { return door::Main(argc, argv); }
