package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
)

// tlsMesh serves the tool lab.double on a NATS server that demands TLS, a client's certificate and a password. It
// returns a folder with contexts of the nats command: "tls" for that mesh, "first" for a server without a mesh
// that uses TLS from the first byte, and their files ca.pem, client.pem, client-key.pem.
func tlsMesh(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	made := func(name string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = key
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		cert, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, filepath.Join(dir, name+".pem"), "CERTIFICATE", cert)
		writePEM(t, filepath.Join(dir, name+"-key.pem"), "PRIVATE KEY", private)
		return key
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1},
	}
	key := made("ca", ca, ca, nil)
	made("server", &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, key)
	made("client", &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "client"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key)
	file := func(name string) string { return filepath.Join(dir, name+".pem") }

	pair, err := tls.LoadX509KeyPair(file("server"), file("server-key"))
	if err != nil {
		t.Fatal(err)
	}
	authorities, err := os.ReadFile(file("ca"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	for _, first := range []bool{false, true} {
		s, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: !first, StoreDir: t.TempDir(),
			Username: "u", Password: "hush", TLS: true, TLSTimeout: 30, TLSHandshakeFirst: first,
			TLSConfig: &tls.Config{
				Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the NATS server does not start")
		}
		name, more := "tls", ""
		if first {
			name, more = "first", `,"tls_first":true`
		}
		saved := `{"url":"nats://` + s.Addr().String() + `","user":"u","password":"hush","ca":"` + file("ca") +
			`","cert":"` + file("client") + `","key":"` + file("client-key") + `"` + more + `}`
		contexts := filepath.Join(dir, "nats", "context")
		if err := os.MkdirAll(contexts, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(contexts, name+".json"), []byte(saved), 0o600); err != nil {
			t.Fatal(err)
		}
		if first {
			continue
		}
		nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("u", "hush"), nats.RootCAs(file("ca")), nats.ClientCert(file("client"), file("client-key")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		r := testmesh.Router(t, nc, nil)
		if _, err := r.Handle("lab", "double", host.Func(func(_ context.Context, in struct {
			N int `json:"n"`
		}) (int, error) {
			return 2 * in.N, nil
		})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func writePEM(t *testing.T, name, kind string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
		t.Fatal(err)
	}
}
