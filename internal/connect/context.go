package connect

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// savedContext is a connection that the nats command line has saved.
type savedContext struct {
	URL         string `json:"url"`
	JSDomain    string `json:"jetstream_domain"`
	InboxPrefix string `json:"inbox_prefix"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	CA          string `json:"ca"`
	TLSFirst    bool   `json:"tls_first"`

	// Not supported, so a context with it is refused.
	NSC        string `json:"nsc"`
	UserJWT    string `json:"user_jwt"`
	SocksProxy string `json:"socks_proxy"`
	CertStore  string `json:"windows_cert_store"`
}

// readContext reads a saved context from the nats command line's folder: below XDG_CONFIG_HOME,
// else below HOME/.config. It refuses unknown settings: the connection would lack them. The options
// have the files that the context names.
func readContext(env []string, name string) (c savedContext, options []nats.Option, err error) {
	config, home := Lookup(env, "XDG_CONFIG_HOME"), Lookup(env, "HOME")
	if config == "" {
		config = filepath.Join(home, ".config")
	}
	switch {
	case name != filepath.Base(name):
		err = fmt.Errorf("a name has no %q", filepath.Separator)
	case !filepath.IsAbs(config): // a relative path would depend on the working folder
		err = errors.New("its folder is unknown: set HOME, or XDG_CONFIG_HOME to an absolute path")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(filepath.Join(config, "nats", "context", name+".json"))
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, nil, fmt.Errorf("the NATS context %q cannot be used: %w; `nats context ls` shows those that are saved", name, err)
	}
	const inFiles = "save the credentials in files, and name them as creds, nkey, or cert and key"
	for _, has := range []struct {
		field string
		set   bool
		do    string
	}{
		{"nsc", c.NSC != "", inFiles},
		{"user_jwt", c.UserJWT != "" && c.User == "" && c.Creds == "" && c.NKey == "", inFiles},
		{"creds from op://", strings.HasPrefix(c.Creds, "op://"), inFiles},
		{"windows_cert_store", c.CertStore != "", inFiles},
		{"socks_proxy", c.SocksProxy != "", "name a server that is reached without a proxy"},
	} {
		if has.set {
			return c, nil, fmt.Errorf("the NATS context %q has %s, which Toolmesh does not read: %s", name, has.field, has.do)
		}
	}
	for field, file := range map[string]*string{"creds": &c.Creds, "nkey": &c.NKey, "cert": &c.Cert, "key": &c.Key, "ca": &c.CA} {
		if err := expand(file, env); err != nil {
			return c, nil, fmt.Errorf("the NATS context %q has %s %s: %w", name, field, *file, err)
		}
	}
	if options, err = c.options(); err != nil {
		return c, nil, fmt.Errorf("the NATS context %q cannot be used: %w", name, err)
	}
	return c, options, nil
}

// expand replaces $VAR and a first ~/ from the environment, as the nats command line does. A
// variable that is not set is an error: the path would be another one, or none.
func expand(file *string, env []string) (err error) {
	text := *file
	if strings.HasPrefix(text, "~/") {
		text = "$HOME" + text[1:]
	}
	text = os.Expand(text, func(variable string) string {
		value := Lookup(env, variable)
		if value == "" {
			err = fmt.Errorf("the variable %s is not set", variable)
		}
		return value
	})
	if err == nil {
		*file = text
	}
	return err
}

// options returns the connection options of the context, except its creds and its nkey. It reads
// each file: the error names one that cannot be used.
func (c *savedContext) options() (options []nats.Option, err error) {
	if c.User != "" {
		options = append(options, nats.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		options = append(options, nats.Token(c.Token))
	}
	if c.Cert != "" && c.Key != "" {
		if _, err := tls.LoadX509KeyPair(c.Cert, c.Key); err != nil {
			return nil, fmt.Errorf("cert %s, key %s: %w", c.Cert, c.Key, err)
		}
		options = append(options, nats.ClientCert(c.Cert, c.Key))
	}
	if c.CA != "" {
		data, err := os.ReadFile(c.CA)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
			err = errors.New("it holds no certificates")
		}
		if err != nil {
			return nil, fmt.Errorf("ca %s: %w", c.CA, err)
		}
		options = append(options, nats.RootCAs(c.CA))
	}
	if c.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.TLSFirst {
		options = append(options, nats.TLSHandshakeFirst())
	}
	return options, nil
}

// checkCreds returns an error for a credentials file that no connection can use.
func checkCreds(file string) error {
	data, err := os.ReadFile(file)
	if err == nil {
		_, err = nkeys.ParseDecoratedNKey(data)
	}
	if err != nil {
		return fmt.Errorf("the NATS credentials file %s cannot be read: %w", file, err)
	}
	return nil
}
