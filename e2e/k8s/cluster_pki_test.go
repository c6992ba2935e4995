package k8s

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates into a folder: NAME.crt and NAME.key.
type authority struct {
	folder string
	cert   *x509.Certificate
	key    crypto.Signer
}

func newAuthority(folder, name string) (*authority, error) {
	a := &authority{folder: folder}
	err := a.sign(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: "toolmesh-e2e-" + name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	return a, err
}

// client signs a user's certificate: the name, and the group that Kubernetes takes it for.
func (a *authority) client(file, name string, group ...string) error {
	return a.sign(file, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: group},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) server(file string, names []string, addresses ...string) error {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: file}, DNSNames: names,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, text := range addresses {
		c.IPAddresses = append(c.IPAddresses, net.ParseIP(text))
	}
	return a.sign(file, c)
}

func (a *authority) sign(name string, c *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return err
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		return err
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
		a.key = key
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	file := filepath.Join(a.folder, name)
	return errors.Join(
		os.WriteFile(file+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
		os.WriteFile(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

// kubeconfig writes NAME.kubeconfig next to the certificate of the same name.
func (a *authority) kubeconfig(name string) error {
	var parts []any
	for _, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		data, err := os.ReadFile(filepath.Join(a.folder, file))
		if err != nil {
			return err
		}
		parts = append(parts, base64.StdEncoding.EncodeToString(data))
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: %s}
users:
- name: u
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: x
  context: {cluster: c, user: u}
current-context: x
`, parts...)
	return os.WriteFile(filepath.Join(a.folder, name+".kubeconfig"), []byte(text), 0o600)
}

// makePKI makes all keys of a cluster.
func makePKI(folder string) error {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(folder, "ca")
	if err != nil {
		return err
	}
	front, err := newAuthority(folder, "front-ca")
	if err != nil {
		return err
	}
	err = errors.Join(
		ca.server("apiserver", []string{"localhost", "kubernetes", "kubernetes.default.svc"}, "127.0.0.1", "10.96.0.1", address),
		front.client("front", "front-proxy-client"),
		ca.client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
		ca.client("service-accounts", "service-accounts")) // its key signs their tokens
	for name, of := range map[string][2]string{
		"admin":   {"admin", "system:masters"},
		"manager": {"system:kube-controller-manager"}, "scheduler": {"system:kube-scheduler"},
		"proxy": {"system:kube-proxy"}, NodeName: {"system:node:" + NodeName, "system:nodes"},
	} {
		var groups []string
		if of[1] != "" {
			groups = []string{of[1]}
		}
		err = errors.Join(err, ca.client(name, of[0], groups...), ca.kubeconfig(name))
	}
	return err
}
