package index

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// passage lets a git apart talk to a repository that only this process's user reaches: by ssh, or on
// this machine. It listens on loopback, takes git's own protocol, and passes the bytes of each
// connection to ssh, or to git upload-pack, of this process's user. These read no object.
type passage struct {
	address  string // for git, with a token: any user of this machine reaches the port
	token    string
	listener net.Listener
	far      []string // ssh or git upload-pack
	env      []string
	cancel   context.CancelFunc
	serving  sync.WaitGroup

	mu   sync.Mutex
	said tail // by far
}

const (
	// maxStrangers is how many connections without a valid request are open at once. A further one
	// closes the oldest, so a program that holds many keeps git from none.
	maxStrangers = 64
	// passageWait is the time that a connection has for its request.
	passageWait = 5 * time.Second
)

// guest is a connection to a passage.
type guest struct {
	*net.TCPConn
	known atomic.Bool // its request was valid
}

// openPassage opens the passage to a repository. Close it.
func (g git) openPassage(ctx context.Context, location string) (*passage, error) {
	env := g.environ(os.Environ())
	far := g.far(location, env)
	if far == nil {
		return nil, failed(reasonSource, "the repository %s is neither on http, https or ssh nor on this machine", location)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, failed(reasonGit, "no port for git: %w", err)
	}
	p := &passage{token: rand.Text(), listener: listener, far: far, env: env}
	p.address = "git://" + listener.Addr().String() + "/" + p.token
	ctx, p.cancel = context.WithCancel(ctx)
	p.serving.Go(func() {
		var last [maxStrangers]*guest
		for n := 0; ; n = (n + 1) % maxStrangers {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if oldest := last[n]; oldest != nil && !oldest.known.Load() {
				_ = oldest.Close()
			}
			next := &guest{TCPConn: conn.(*net.TCPConn)}
			last[n] = next
			p.serving.Go(func() { p.serve(ctx, next) })
		}
	})
	return p, nil
}

// passageName stands for the address of a passage: every user of this machine reads what git is called with.
const passageName = "passage://repository"

// or returns the name of the passage; location without one.
func (p *passage) or(location string) string {
	if p == nil {
		return location
	}
	return passageName
}

func (p *passage) close() {
	if p != nil {
		_ = p.listener.Close()
		p.cancel()
		p.serving.Wait()
	}
}

// reason is what the programs behind the passage have said.
func (p *passage) reason() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.said)
}

// Write keeps the last that the programs behind the passage say.
func (p *passage) Write(said []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(said)
}

// protocolVersion is a parameter of a request.
var protocolVersion = regexp.MustCompile("\x00(version=[0-9])\x00")

// serve serves one connection: a request of git's own protocol, then what the far program speaks.
// See gitprotocol-pack(5), "Git Transport".
func (p *passage) serve(ctx context.Context, conn *guest) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(passageWait))
	size := make([]byte, 4)
	if _, err := io.ReadFull(conn, size); err != nil {
		return
	}
	n, err := strconv.ParseUint(string(size), 16, 10)
	if err != nil || n < 4 {
		return
	}
	line := make([]byte, n-4)
	if _, err := io.ReadFull(conn, line); err != nil {
		return
	}
	request, parameters, _ := strings.Cut(string(line), "\x00")
	if subtle.ConstantTimeCompare([]byte(request), []byte("git-upload-pack /"+p.token)) != 1 {
		return
	}
	conn.known.Store(true)
	_ = conn.SetReadDeadline(time.Time{})
	socket, err := conn.File()
	if err != nil {
		return
	}
	defer socket.Close()
	env := append(slices.Clip(p.env), "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "LC_ALL=C", "LANGUAGE=")
	if version := protocolVersion.FindStringSubmatch(parameters); version != nil {
		env = append(env, "GIT_PROTOCOL="+version[1])
	}
	cmd := grouped(ctx, "/", p.far, env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = socket, socket, p
	_ = cmd.Run() // git tells that its connection has ended, and reason why
}

// elsewhere matches user@host:path; host may be an IPv6 address in brackets.
var elsewhere = regexp.MustCompile(`^((?:[^/@:\[]+@)?)(?:\[([^\]]+)\]|([^/:\[]+)):(.+)$`)

// far returns the program that speaks git's protocol for a repository by ssh or of this machine, nil
// for another. env is its environment.
func (g git) far(location string, env []string) []string {
	if filepath.IsAbs(location) {
		return []string{g.command, "upload-pack", "--", location}
	}
	var host, port, path string
	if u, err := url.Parse(location); err == nil && strings.Contains(location, "://") {
		switch u.Scheme {
		case "file":
			return []string{g.command, "upload-pack", "--", u.Path}
		case "ssh":
			host, port, path = u.Hostname(), u.Port(), u.Path
			if user := u.User.Username(); user != "" {
				host = user + "@" + host
			}
			if strings.HasPrefix(path, "/~") {
				path = path[1:]
			}
		}
	} else if parts := elsewhere.FindStringSubmatch(location); parts != nil {
		host, path = parts[1]+parts[2]+parts[3], parts[4]
	}
	if host == "" || strings.HasPrefix(host, "-") || strings.HasPrefix(path, "-") {
		return nil
	}
	args := []string{"-oSendEnv=GIT_PROTOCOL"}
	if port != "" {
		args = append(args, "-p", port)
	}
	args = append(args, host, "git-upload-pack '"+strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(path)+"'")
	ssh := map[string]string{}
	for _, line := range env {
		if name, value, _ := strings.Cut(line, "="); ownSSH.MatchString(line) {
			ssh[name] = value
		}
	}
	if shell := ssh["GIT_SSH_COMMAND"]; shell != "" {
		return append([]string{"sh", "-c", shell + ` "$@"`, shell}, args...)
	}
	if program := ssh["GIT_SSH"]; program != "" {
		return append([]string{program}, args...)
	}
	return append([]string{"ssh", "-oBatchMode=yes", "-oConnectTimeout=20"}, args...)
}
