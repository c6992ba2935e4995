package deploy_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// upload puts a folder with one tool into the mesh, and returns its digest.
func (n *node) upload(t *testing.T, text string) string {
	t.Helper()
	dir := testmesh.Repository(t, "folder", map[string]string{"tools.toml": oneTool, "t.py": text})
	src, err := index.Parse(dir)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := index.Fetch(t.Context(), src, filepath.Join(t.TempDir(), "tree"), "", index.FetchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var bundle bytes.Buffer
	digest, err := index.Pack(t.Context(), &bundle, tree.Dir, tree.Files, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Of(n.bus).PutBundle(t.Context(), digest, &bundle); err != nil {
		t.Fatal(err)
	}
	return digest
}

// An index from a folder belongs to its signer: any caller may claim a folder of that name.
func TestBundleBelongsToItsSigner(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	first, second := n.upload(t, "def tool(): return 1\n"), n.upload(t, "def tool(): return 2\n")
	ask := func(bundle, owner string) deploy.Request {
		return deploy.Request{Source: "/home/me/idx", Bundle: bundle, Name: "idx", Owner: owner}
	}
	refused := func(r deploy.Request, parts ...string) {
		t.Helper()
		_, err := n.install(t, r)
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeInvalidRequest || e.Started != toolmesh.StartedNo {
			t.Errorf("install of %s by %q: %v, want that it is refused", r.Source, r.Owner, err)
			return
		}
		for _, part := range append(parts, "--name") {
			if !strings.Contains(e.Message, part) {
				t.Errorf("%q does not say %q", e.Message, part)
			}
		}
	}
	owned := func(owner, revision string) {
		t.Helper()
		if r := n.record(t, "idx"); r == nil || r.Owner != owner || r.Revision != revision {
			t.Errorf("the record is %+v, want one of %q at %s", r, owner, revision)
		}
	}

	n.mustInstall(t, ask(first, ""))
	owned("", first)
	n.mustInstall(t, ask(first, "ME")) // one from before, unchanged: its next installer has it
	owned("ME", first)
	refused(ask(second, ""), "another owner (key ME)", "--replace")
	refused(ask(second, "YOU"), "another owner (key ME)", "--replace")
	r := ask(second, "ME")
	r.Env, r.Paths = map[string]string{"WORD": "mine"}, []index.Folder{{Path: t.TempDir()}}
	n.mustInstall(t, r)
	owned("ME", second)

	// A takeover that fails has changed nothing.
	r = ask(first, "YOU")
	r.Replace = true
	n.workshop.set(nil, func(b deploy.Build) error {
		if b.Revision == first {
			return errors.New("not now")
		}
		return nil
	})
	if _, err := n.install(t, r); err == nil || n.record(t, "idx") == nil {
		t.Fatalf("the takeover did not fail: %v", err)
	}
	owned("ME", second)
	n.workshop.set(nil, nil)
	n.mustInstall(t, r)
	owned("YOU", first)
	if r := n.record(t, "idx"); len(r.Env)+len(r.Settings) != 0 {
		t.Errorf("the new owner has what was given to the one before: %v %s", r.Env, r.Settings)
	}

	// A repository that the mesh has fetched is not a folder's that says to be it.
	url, dir := source(t, "fetched")
	n.mustInstall(t, deploy.Request{Source: url})
	refused(deploy.Request{Source: url, Bundle: second, Name: "fetched", Owner: "ME"}, dir, "--replace")
	refused(deploy.Request{Source: "git:" + url, Bundle: second, Name: "fetched", Owner: "ME"}, dir)
}

func TestSigner(t *testing.T) {
	t.Parallel()
	key := func() nkeys.KeyPair {
		k, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	mine, theirs := key(), key()
	body := []byte(`{"source":"/x","bundle":"d"}`)
	sign := func(k nkeys.KeyPair) codec.Header {
		h, err := deploy.Sign(k, body)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	public, err := mine.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if owner, err := deploy.Signer(sign(mine), body); err != nil || owner != public {
		t.Errorf("signed: %q, %v, want %q", owner, err, public)
	}
	if owner, err := deploy.Signer(nil, body); err != nil || owner != "" {
		t.Errorf("not signed: %q, %v", owner, err)
	}
	server, err := nkeys.CreateServer()
	if err != nil {
		t.Fatal(err)
	}
	forged := sign(theirs)
	forged.Set(codec.HeaderOwner, public)
	unsigned := codec.Header{codec.HeaderOwner: {public}}
	for name, h := range map[string]codec.Header{"by another key": forged, "not at all": unsigned, "no key of a user": sign(server)} {
		if owner, err := deploy.Signer(h, body); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || owner != "" {
			t.Errorf("signed %s: %q, %v", name, owner, err)
		}
	}
	if _, err := deploy.Signer(sign(mine), append(body, ' ')); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("another body: %v", err)
	}
}
