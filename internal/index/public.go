package index

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
)

// notPublic are networks that are not the internet, beyond those that [netip.Addr] knows as such.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("fec0::/10"),
}

// Addresses of IPv6 that stand for one of IPv4, and the byte at which that begins.
var embedding = []struct {
	prefix netip.Prefix
	at     int
}{{netip.MustParsePrefix("64:ff9b::/96"), 12}, {netip.MustParsePrefix("2002::/16"), 2}}

// public reports whether an address is one of the internet.
func public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, e := range embedding {
		if e.prefix.Contains(a) {
			bytes := a.As16()
			return public(netip.AddrFrom4([4]byte(bytes[e.at : e.at+4])))
		}
	}
	return a.IsGlobalUnicast() && !a.IsPrivate() && !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(a) })
}

// pin is the resolved addresses of a name, to which all requests go: a second lookup may give
// others.
type pin struct {
	host      string
	ports     []string
	addresses []netip.Addr
}

// settings are those of a git that has them (2.37).
func (p *pin) settings() (args []string) {
	if p == nil {
		return nil
	}
	var all []string
	for _, a := range p.addresses {
		if a.Is6() {
			all = append(all, "["+a.String()+"]")
			continue
		}
		all = append(all, a.String())
	}
	for _, port := range p.ports {
		args = append(args, "-c", "http.curloptResolve="+p.host+":"+port+":"+strings.Join(all, ","))
	}
	return args
}

// dial connects to one of the addresses.
func (p *pin) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var d net.Dialer
	host, port, err := net.SplitHostPort(address)
	if p == nil || err != nil || !strings.EqualFold(host, p.host) { // such as a proxy
		return d.DialContext(ctx, network, address)
	}
	for _, a := range p.addresses {
		if conn, err = d.DialContext(ctx, network, net.JoinHostPort(a.String(), port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	// numeric is a last part that makes a name an address for some: 2130706433, 0x7f.1.
	numeric = regexp.MustCompile(`(?:^|\.)(?:[0-9]+|0[xX][0-9a-fA-F]*)$`)
)

// resolver looks a name up, as [net.Resolver] does.
type resolver func(ctx context.Context, network, host string) ([]netip.Addr, error)

// public refuses a repository that is not on the internet, and returns its addresses if it
// had to look them up. Where a proxy is used for it, an unknown name is left to the proxy.
// Addresses of ssh are not pinned: it knows its hosts by their keys.
func (g git) public(ctx context.Context, src Source, lookup resolver) (*pin, error) {
	scheme, host, port := src.remote()
	if src.Local() {
		return nil, notAllowed(src, "is a repository on the agent's own disk; a folder of yours is installed by its path")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if !public(a) {
			return nil, notAllowed(src, "is on the agent's own machine, or in a private network")
		}
		return nil, nil
	}
	lower := strings.ToLower(host)
	switch {
	case !hostName.MatchString(host):
		return nil, notAllowed(src, fmt.Sprintf("names the host %q, which is neither a plain name nor an address", host))
	case numeric.MatchString(host):
		return nil, notAllowed(src, "has an address in another form than 192.0.2.1")
	case lower == "localhost" || strings.HasSuffix(lower, ".localhost"):
		return nil, notAllowed(src, "is on the agent's own machine")
	}
	found, err := lookup(ctx, "ip", host)
	if err != nil || len(found) == 0 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if scheme != "ssh" && g.proxied(ctx, src.Location) {
			return nil, nil
		}
		e := failed(reasonUnreachable, "the repository %s cannot be read: the name %s cannot be resolved here: check the address and the network", src, host).
			WithDetail("repository", src.Location)
		if scheme == "ssh" {
			e = failed(reasonUnreachable, "%s; a name that ssh alone knows needs an agent with --private-sources", e.Message).WithDetail("repository", src.Location)
		}
		return nil, e
	}
	for i, a := range found {
		if found[i] = a.Unmap(); !public(a) {
			return nil, notAllowed(src, fmt.Sprintf("is on the agent's own machine, or in a private network (%s)", a))
		}
	}
	p := &pin{host: host, ports: []string{"443", "80"}, addresses: found}
	if port != "" && !slices.Contains(p.ports, port) {
		p.ports = append(p.ports, port)
	}
	return p, nil
}

// remote is where a repository is: scheme, host, and port if it is said.
func (s Source) remote() (scheme, host, port string) {
	if u, err := url.Parse(s.Location); err == nil && strings.Contains(s.Location, "://") {
		return u.Scheme, u.Hostname(), u.Port()
	}
	_, rest, _ := strings.Cut(s.Location, "@") // user@host:path
	host, _, _ = strings.Cut(rest, ":")
	return "ssh", host, ""
}

// Local reports whether a source is on the disk of the machine that fetches it.
func (s Source) Local() bool {
	return s.Kind != KindGit || strings.HasPrefix(s.Location, "file:")
}

// proxied reports whether git asks a proxy for a location.
func (g git) proxied(ctx context.Context, location string) bool {
	if request, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil); err == nil {
		if proxy, err := http.ProxyFromEnvironment(request); err == nil && proxy != nil {
			return true
		}
	}
	out, err := g.output(ctx, "", nil, "config", "--get-urlmatch", "http.proxy", location)
	return err == nil && strings.TrimSpace(string(out)) != ""
}

// notAllowed refuses a source that an agent does not fetch for others.
func notAllowed(src Source, why string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest,
		"%s %s: an agent fetches from there only if it is started with --private-sources (MESH_PRIVATE_SOURCES=true)", src, why).
		WithDetail("reason", reasonPrivate).WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
}
