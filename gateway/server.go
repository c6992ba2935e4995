package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
)

const (
	headerTime  = 10 * time.Second // for a request's header
	idleTime    = 2 * time.Minute  // for a connection without requests
	headerBytes = 32 << 10
	maxConns    = 20_000
	stopTime    = 2 * time.Second
	leaveTime   = time.Second // for the last events of streams
)

// ListenOptions sets where and how a [Server] listens.
type ListenOptions struct {
	// Address is HOST:PORT; port 0 takes a free one.
	Address string
	// CertFile and KeyFile turn TLS on. Both default to none.
	CertFile, KeyFile string
	// Insecure permits an address without TLS that other machines reach.
	Insecure bool
}

// ErrInsecure refuses such an address: tokens would travel in the clear.
var ErrInsecure = errors.New("other machines reach this address, and tokens would travel in the clear: serve TLS, or say that something in front of it does")

// Server serves a gateway on an address and bounds all resources that a client can hold.
type Server struct {
	g       *Gateway
	http    *http.Server
	address string
	scheme  string
	wg      sync.WaitGroup
}

// Listen starts to serve a gateway. The server closes the gateway when it stops.
func Listen(ctx context.Context, g *Gateway, o ListenOptions) (*Server, error) {
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q is not an address: write HOST:PORT", o.Address)
	}
	if !namesLoopback(o.Address) && !o.Insecure && o.CertFile == "" {
		return nil, ErrInsecure
	}
	s := &Server{g: g, scheme: "http://"}
	var config *tls.Config
	if o.CertFile+o.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "read the certificate %s and its key %s: %w", o.CertFile, o.KeyFile, err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		s.scheme = "https://"
	}
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, err
	}
	s.address = listener.Addr().String()
	if at, ok := listener.Addr().(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		s.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port)) // an address that clients can reach
	}
	var conns atomic.Int64
	s.http = &http.Server{
		Handler: g, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes, TLSConfig: config,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // mistakes of clients
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if conns.Add(1) > maxConns {
					_ = c.Close() // the server closes it once more and counts it off
				}
			case http.StateClosed, http.StateHijacked: // each connection reports one of them, once
				conns.Add(-1)
			}
		},
	}
	s.wg.Go(func() {
		if config != nil {
			err = s.http.ServeTLS(listener, "", "")
		} else {
			err = s.http.Serve(listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			g.log.Error("the gateway stopped serving", slog.String("error", err.Error()))
		}
	})
	return s, nil
}

// URL is the address of the gateway. For a wildcard address it names the loopback interface.
func (s *Server) URL() string { return s.scheme + s.address }

// Stop lets requests end for two seconds and then closes the gateway, which notifies readers of streams. A second
// later it closes the remaining connections.
func (s *Server) Stop() {
	s.g.closing.Store(true)
	err := s.shutdown(stopTime)
	s.g.Close()
	if err != nil && s.shutdown(leaveTime) != nil {
		_ = s.http.Close()
	}
	s.wg.Wait()
}

func (s *Server) shutdown(most time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return s.http.Shutdown(ctx)
}
