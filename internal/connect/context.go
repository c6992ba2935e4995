package connect

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/synadia-io/orbit.go/natscontext"
)

// savedContext is a connection that the nats command line has saved.
type savedContext struct {
	natscontext.Settings
	path string
}

// readContext reads a saved context from the nats command line's folder: below
// XDG_CONFIG_HOME, else below HOME/.config. It refuses credentials that the library does
// not read, which would connect without any.
func readContext(env []string, name string) (c savedContext, err error) {
	config := Lookup(env, "XDG_CONFIG_HOME")
	if config == "" {
		config = filepath.Join(Lookup(env, "HOME"), ".config")
	}
	path, err := filepath.Abs(filepath.Join(config, "nats", "context", name+".json"))
	if err == nil && name != filepath.Base(name) {
		err = fmt.Errorf("a name has no %q", filepath.Separator)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, &c.Settings)
	}
	if err != nil {
		return c, fmt.Errorf("the NATS context %q cannot be used: %w; `nats context ls` shows those that are saved", name, err)
	}
	for field, set := range map[string]bool{
		"nsc": c.NSCLookup != "", "user_jwt": c.UserJwt != "" && c.User == "" && c.Creds == "" && c.NKey == "", "creds from op://": strings.HasPrefix(c.Creds, "op://"),
	} {
		if set {
			return c, fmt.Errorf("the NATS context %q has %s, which Toolmesh does not read: save the credentials in a file and name it as creds", name, field)
		}
	}
	c.path = path
	return c, nil
}
