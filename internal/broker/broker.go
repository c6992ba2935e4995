package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// The bounds of JetStream where [Options] names none.
const (
	DefaultMaxMemory = 256 << 20
	DefaultMaxStore  = 10 << 30
)

// Options says how a [Broker] runs. The zero value needs a StoreDir only.
type Options struct {
	// Listen is the address for clients, host:port. Port 0 takes a free one.
	// Defaults to 127.0.0.1:0.
	Listen string
	// StoreDir is the folder of JetStream's files, made when missing. Required:
	// nats-server's own default is a shared temporary folder. Two brokers must
	// not share one; the caller locks it.
	StoreDir string
	// Name is the server's name, unique in a cluster. Defaults to "mesh".
	Name string
	// MaxPayload is the largest message in bytes. Defaults to 1 MiB.
	MaxPayload int
	// MaxMemory and MaxStore bound JetStream, in bytes. They default to
	// [DefaultMaxMemory] and [DefaultMaxStore]: nats-server would take three
	// quarters of the machine. A stream reserves its own bound of them whole.
	MaxMemory, MaxStore int64
	// Config is text in the form of nats-server's configuration file: accounts,
	// users, TLS, clusters, leaf nodes. It is read last. Defaults to none.
	Config string
	// Logger takes the server's log; nil discards it.
	Logger *slog.Logger
}

// Broker is one running nats-server. Its methods may be called concurrently.
type Broker struct {
	srv  *server.Server
	url  string
	stop sync.Once
}

// Start runs a server and returns when clients can connect and, unless it is
// clustered, JetStream answers. An address in use is an error that names it. ctx
// bounds the start only; the caller ends the broker with [Broker.Shutdown].
func Start(ctx context.Context, o Options) (*Broker, error) {
	opts, err := o.serverOptions()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start the broker: %w", err)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("configure the broker: %w", err)
	}
	log := &serverLog{log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	srv.SetLoggerV2(log, false, false, false)

	b := &Broker{srv: srv}
	// Start returns once the listeners are open or have failed; a fatal error arrives as a log
	// line, which serverLog keeps.
	srv.Start()
	if err := b.ready(ctx, opts, log); err != nil {
		b.Shutdown()
		return nil, err
	}
	return b, nil
}

func (o Options) serverOptions() (*server.Options, error) {
	if o.StoreDir == "" {
		return nil, errors.New("broker: Options.StoreDir is required")
	}
	host, port, err := splitAddress(cmp.Or(o.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("broker: Options.Listen: %w", err)
	}
	opts := &server.Options{
		ServerName:             cmp.Or(o.Name, "mesh"),
		Host:                   host,
		Port:                   port,
		NoSigs:                 true,
		JetStream:              true,
		StoreDir:               o.StoreDir,
		JetStreamMaxMemory:     cmp.Or(o.MaxMemory, DefaultMaxMemory),
		JetStreamMaxStore:      cmp.Or(o.MaxStore, DefaultMaxStore),
		PingInterval:           10 * time.Second,
		DisableJetStreamBanner: true,
		// The password hashing of other people's users is slow on small machines.
		AuthTimeout: 5,
	}
	maxPayload := cmp.Or(o.MaxPayload, 1<<20)
	if maxPayload < 1<<10 || maxPayload > 64<<20 {
		return nil, fmt.Errorf("broker: Options.MaxPayload is %d: between 1 KiB and 64 MiB is possible", maxPayload)
	}
	opts.MaxPayload = int32(min(maxPayload, math.MaxInt32))
	if o.Config != "" {
		if err := opts.ProcessConfigString(o.Config); err != nil {
			return nil, fmt.Errorf("broker: Options.Config: %w", err)
		}
	}
	return opts, nil
}

// splitAddress turns port 0 into nats-server's "any free port", which is -1.
func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port: %w", address, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q has no port between 0 and 65535", address)
	}
	if n == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(n), nil
}

func (b *Broker) ready(ctx context.Context, opts *server.Options, log *serverLog) error {
	if err := log.fatalError(); err != nil {
		if opts.Port > 0 && b.srv.Addr() == nil {
			address := net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port))
			return fmt.Errorf("the broker cannot listen on %s: is another NATS server running there? choose another address: %w", address, err)
		}
		return fmt.Errorf("the broker cannot start: %w", err)
	}
	for !b.srv.ReadyForConnections(time.Millisecond) {
		if err := log.fatalError(); err != nil {
			return fmt.Errorf("the broker cannot start: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the broker was not ready in time: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
	addr, ok := b.srv.Addr().(*net.TCPAddr)
	if !ok {
		// Options.Config asks for no listener; in-process connections remain.
		b.url = b.srv.ClientURL()
		return nil
	}
	host := opts.Host
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "nats"
	if opts.TLSConfig != nil {
		scheme = "tls"
	}
	b.url = scheme + "://" + net.JoinHostPort(host, strconv.Itoa(addr.Port))
	return nil
}

// URL is where clients connect.
func (b *Broker) URL() string { return b.url }

// InProcessConn connects without a socket; it makes a Broker a nats.InProcessServer.
func (b *Broker) InProcessConn() (net.Conn, error) { return b.srv.InProcessConn() }

// Server is the server itself, for tests and for features that this package does not wrap.
func (b *Broker) Server() *server.Server { return b.srv }

// Connected reports whether a client is there, by the server's number of it.
func (b *Broker) Connected(client uint64) bool { return b.srv.GetClient(client) != nil }

// Disconnect ends a client's connection, by the server's number of it, if it is there.
func (b *Broker) Disconnect(client uint64) { _ = b.srv.DisconnectClientByID(client) }

// Shutdown ends the server and returns when everything it started has ended.
// It may be called more than once and concurrently; every call waits.
func (b *Broker) Shutdown() {
	b.stop.Do(func() {
		b.srv.Shutdown()
		b.srv.WaitForShutdown()
	})
}

// serverLog writes nats-server's log to slog and keeps fatal errors: nats-server's own logger would
// end the process there.
type serverLog struct {
	log *slog.Logger

	mu    sync.Mutex
	fatal error
}

const logMessage = "broker"

func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug(logMessage, slog.String("text", fmt.Sprintf(format, v...)))
}

func (l *serverLog) Warnf(format string, v ...any) { l.line(slog.LevelWarn, fmt.Sprintf(format, v...)) }
func (l *serverLog) Errorf(format string, v ...any) {
	l.line(slog.LevelError, fmt.Sprintf(format, v...))
}

// line writes a line of the server. Lines about a refused key are of level debug: any stranger causes
// them, and the client is told why.
func (l *serverLog) line(level slog.Level, text string) {
	if strings.Contains(text, server.ErrAuthentication.Error()) || strings.Contains(text, "Auth callout service returned an error") {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, logMessage, slog.String("text", text))
}

func (l *serverLog) Debugf(format string, v ...any) { l.Noticef(format, v...) }
func (l *serverLog) Tracef(format string, v ...any) { l.Noticef(format, v...) }

func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error(logMessage, slog.String("text", text))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == nil {
		l.fatal = errors.New(text)
	}
}

func (l *serverLog) fatalError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
