package attacks_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/subjects"
)

// An administrator attacks the index small, which another administrator's key owns.

// other makes another folder of that name.
func (m *meshWithKeys) other() string {
	dir := filepath.Join(m.dir, "other", "small")
	write(m.t, filepath.Join(dir, "tools.toml"), "[index]\ntools = [\"t.hello\"]\n", 0o644)
	write(m.t, filepath.Join(dir, "t.py"), "def hello() -> str:\n    return \"replaced\"\n", 0o644)
	return dir
}

// replace installs that folder.
func (m *meshWithKeys) replace() error {
	cmd := exec.CommandContext(m.t.Context(), program, "install", m.other(), "--server="+m.url, credentials(m.admin))
	cmd.Env = append(environ(m.dir), "XDG_STATE_HOME="+filepath.Join(m.dir, "other"))
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("belongs to")) {
		return fmt.Errorf("not refused: %s %v", out, err)
	}
	return m.asItWas()
}

// claimFolder installs a bundle that claims to be from small's folder.
func (m *meshWithKeys) claimFolder() error { return m.claim("", "another owner", false) }

// claimOwner also claims to be signed by the owner's key.
func (m *meshWithKeys) claimOwner() error { return m.claim("", "not signed", true) }

// claimRepository installs a bundle that claims to be from a repository.
func (m *meshWithKeys) claimRepository() error {
	return m.claim("https://example.org/owner/repo", "fetched by the agent itself", false)
}

// claim installs a bundle that claims a source, by default small's. A key of the attacker signs it; if forged
// is set, the request names the owner's key instead. refusal must be in the answer.
func (m *meshWithKeys) claim(source, refusal string, forged bool) error {
	var said struct {
		Indexes []struct{ Source, Owner string }
	}
	if err := json.Unmarshal([]byte(m.do(m.t, 0, "index", "ls", "--json")), &said); err != nil || len(said.Indexes) != 1 {
		return fmt.Errorf("indexes are %+v, %w", said, err)
	}
	small := said.Indexes[0]
	other := m.other()
	var bundle bytes.Buffer
	digest, err := index.Pack(m.t.Context(), &bundle, other, []string{"tools.toml", "t.py"}, nil)
	if err != nil {
		return err
	}
	nc := m.connect(m.t, m.admin, nats.CustomInboxPrefix(subjects.InboxAdmin))
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	bundles, err := js.ObjectStore(subjects.ObjectBundles)
	if err != nil {
		return err
	}
	if _, err := bundles.Put(&nats.ObjectMeta{Name: digest}, &bundle); err != nil {
		return err
	}
	body, err := json.Marshal(deploy.Request{Source: cmp.Or(source, strings.TrimPrefix(small.Source, "folder:")), Bundle: digest, Name: "small"})
	if err != nil {
		return err
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	header, err := deploy.Sign(key, body)
	if err != nil {
		return err
	}
	if forged {
		header[codec.HeaderOwner] = []string{small.Owner}
	}
	ask := nats.NewMsg("mesh.admin.install")
	ask.Data = body
	maps.Copy(ask.Header, header)
	inbox := nc.NewRespInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	ask.Reply = inbox
	if err := nc.PublishMsg(ask); err != nil {
		return err
	}
	for {
		line, err := answers.NextMsg(time.Minute)
		switch {
		case err != nil:
			return err
		case bytes.Contains(line.Data, []byte(refusal)) && bytes.Contains(line.Data, []byte(`"invalid_request"`)):
			return m.asItWas()
		case len(line.Data) == 0, bytes.Contains(line.Data, []byte(`"error"`)):
			return errors.New("the last line of the answer is another refusal: " + string(line.Data))
		}
	}
}

// asItWas requires that small is unchanged.
func (m *meshWithKeys) asItWas() error { return m.hello(m.connect(m.t, m.keys[without]), "default") }
