package declared_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/deploy/declared"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// rig is a mesh with its indexes in a file, laid out as a mounted ConfigMap.
type rig struct {
	server *meshtest.Server
	bus    *bus.Bus
	store  *registry.Store
	client *client.Client
	dir    string
	writes int
}

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{server: meshtest.Broker(t), dir: t.TempDir()}
	r.bus = r.open(t)
	if err := store.Of(r.bus).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	r.store = testmesh.Store(t, r.bus)
	c := testmesh.Client(t, r.server.Connect(t), nil)
	r.client = c
	if err := os.Symlink(filepath.Join("..data", "indexes.toml"), r.file()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) open(t *testing.T) *bus.Bus {
	t.Helper()
	b := testmesh.Bus(t, r.server.Connect(t), nil)
	return b
}

func (r *rig) file() string { return filepath.Join(r.dir, "indexes.toml") }

// write puts a new text in place of the file, as the kubelet does: the folder behind a
// link is another one at once.
func (r *rig) write(t *testing.T, text string) {
	t.Helper()
	r.writes++
	next := fmt.Sprintf("..%d", r.writes)
	if err := os.Mkdir(filepath.Join(r.dir, next), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, next, "indexes.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(r.dir, "..data_tmp")
	if err := os.Symlink(next, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(r.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) agent(t *testing.T, node subjects.NodeID, labels map[string]string) {
	t.Helper()
	a, err := agent.New(r.server.Connect(t), t.TempDir(), &agent.Options{
		Node: node, Labels: labels, Environ: os.Environ(), WorkerUser: strconv.Itoa(os.Geteuid()), PrivateSources: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, a)
	t.Cleanup(func() { meshtest.End(t, a) })
}

// keep starts a keeper; stop it, or the test's end does.
func (r *rig) keep(t *testing.T, log slog.Handler) (stop func()) {
	t.Helper()
	return r.keepEvery(t, log, 50*time.Millisecond)
}

func (r *rig) keepEvery(t *testing.T, log slog.Handler, every time.Duration, changes ...func(*declared.Keeper)) (stop func()) {
	t.Helper()
	b := r.open(t)
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	if log == nil {
		log = slog.DiscardHandler
		if meshtest.ShowLogs() {
			log = slog.NewTextHandler(t.Output(), nil)
		}
	}
	k := declared.New(b, view, testmesh.Store(t, b), r.file(), &declared.Options{Logger: slog.New(log), Env: []string{"WORD=said"}})
	k.SetPace(every, 200*time.Millisecond)
	for _, change := range changes {
		change(k)
	}
	k.Start()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			k.Stop()
		}
	}
	t.Cleanup(stop)
	return stop
}

// holder returns the lease's holder, or "".
func (r *rig) holder(t *testing.T) string {
	t.Helper()
	d, _, err := r.store.Declared(t.Context())
	if err != nil && !errors.Is(err, store.ErrNoKey) {
		t.Fatal(err)
	}
	return d.Holder
}

// is waits until an entry is said to be in a state.
func (r *rig) is(t *testing.T, name subjects.IndexName, state string) (found registry.DeclaredIndex) {
	t.Helper()
	meshtest.Until(t, fmt.Sprintf("%q is said to be %s", name, state), func() bool {
		d, _, err := r.store.Declared(t.Context())
		at := slices.IndexFunc(d.Entries, func(e registry.DeclaredIndex) bool { return e.Name == name && e.State == state })
		if err != nil || at < 0 {
			return false
		}
		found = d.Entries[at]
		return true
	})
	return found
}

// fails waits until an entry is said to have failed, with a code and a text.
func (r *rig) fails(t *testing.T, name subjects.IndexName, code toolmesh.Code, text string) {
	t.Helper()
	meshtest.Until(t, fmt.Sprintf("%q is said to have failed: %s", name, text), func() bool {
		e := r.is(t, name, registry.DeclaredFailed)
		return e.Code == code && strings.Contains(e.Reason, text) && !e.Since.IsZero()
	})
}

// answers waits until a tool returns a text.
func (r *rig) answers(t *testing.T, id subjects.ToolID, want string) {
	t.Helper()
	var got string
	meshtest.Until(t, fmt.Sprintf("%s answers %s", id, want), func() bool {
		res, err := r.client.Call(t.Context(), id, nil, client.ViaQueue())
		if err != nil {
			return false
		}
		got = string(res.Value)
		return got == want
	})
}

func (r *rig) gone(t *testing.T, name subjects.IndexName) {
	t.Helper()
	meshtest.Until(t, fmt.Sprintf("%s is not installed", name), func() bool {
		_, err := r.store.Index(t.Context(), name, "")
		return errors.Is(err, store.ErrNoKey)
	})
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a git repository with an index; its tool t.f returns a number and a variable,
// and the tags v1 and v2 are the numbers.
func repository(t *testing.T, name string) (url string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q", "-b", "main")
	for n := 1; n <= 2; n++ {
		for file, text := range map[string]string{
			"tools.toml": "[index]\ntools = [\"t.f\"]\n[[index.env]]\nname = \"WORD\"\n",
			"t.py":       fmt.Sprintf("import os\ndef f() -> str:\n    return os.environ.get('WORD', 'none') + ' %d'\n", n),
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		git(t, dir, "add", "-A")
		git(t, dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "change")
		git(t, dir, "tag", fmt.Sprintf("v%d", n))
	}
	return "file://" + dir
}

func entry(url, more string) string { return fmt.Sprintf("[[index]]\nsource = %q\n%s\n", url, more) }

// A file is installed, upgraded, broken and emptied, with an agent and git
// repositories, next to an index that was installed manually.
func TestMeshFollowsItsFileOfIndexes(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.agent(t, "one", nil)
	idx, second, hand := repository(t, "idx"), repository(t, "second"), repository(t, "hand")
	manual := func(what deploy.Request) {
		t.Helper()
		for _, err := range deploy.Install(t.Context(), r.bus, what, nil) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	manual(deploy.Request{Source: hand})

	r.write(t, entry(idx, `rev = "v1"`))
	r.keep(t, nil)
	r.answers(t, "idx.t.f", `"none 1"`)
	r.is(t, "idx", registry.DeclaredInstalled)

	// An upgrade in place, with a variable of the keeper's environment.
	r.write(t, entry(idx, `rev = "v2"`+"\nenv = [\"WORD\"]"))
	r.answers(t, "idx.t.f", `"said 2"`)

	// Broken entries and unreachable repositories do not hold up the others.
	nowhere := "file://" + filepath.Join(t.TempDir(), "nowhere")
	r.write(t, entry(idx, `rev = "v2"`+"\nenv = [\"WORD\", \"MISSING\"]")+entry(nowhere, "")+
		entry(second, `rev = "v1"`)+entry(second, `name = "twice"`)+entry(second, `name = "twice"`)+
		entry(second, `name = "nothere"`+"\non = { gpu = \"true\" }"))
	r.answers(t, "second.t.f", `"none 1"`)
	r.fails(t, "idx", toolmesh.CodeInvalidRequest, `"MISSING"`)
	r.fails(t, "nowhere", toolmesh.CodeInstallFailed, "nowhere")
	r.fails(t, "twice", toolmesh.CodeInvalidRequest, "2 entries")
	r.fails(t, "nothere", toolmesh.CodeInstallFailed, "one has no labels")
	r.answers(t, "idx.t.f", `"said 2"`) // as it was

	// A file that is broken changes nothing.
	r.write(t, entry(second, `rev = "v2"`)+"[[index\n")
	r.fails(t, "", toolmesh.CodeInvalidRequest, "not TOML")
	r.answers(t, "idx.t.f", `"said 2"`)
	r.answers(t, "second.t.f", `"none 1"`)

	// An index that is no longer listed is removed, and comes back as its new entry says: nothing
	// of the old one is kept.
	r.write(t, entry(idx, `rev = "v1"`))
	r.gone(t, "second")
	r.answers(t, "idx.t.f", `"none 1"`)

	// Another revision is installed manually: the file's comes back.
	manual(deploy.Request{Source: idx, Rev: "v2"})
	meshtest.Until(t, "the file's revision is back", func() bool {
		record, err := r.store.Index(t.Context(), "idx", "")
		return err == nil && record.Managed != ""
	})
	r.answers(t, "idx.t.f", `"none 1"`)

	r.write(t, "index = []\n")
	r.gone(t, "idx")
	if _, err := r.store.Index(t.Context(), "hand", ""); err != nil {
		t.Errorf("the manually installed index: %v", err)
	}
}

// A program that writes the file in two parts may be seen between them: the index of the second part
// is not removed meanwhile.
func TestHalfWrittenFileRemovesNoIndex(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.agent(t, "one", nil)
	idx, second := repository(t, "idx"), repository(t, "second")
	half, rest := entry(idx, ""), entry(second, "")
	r.write(t, half+rest)
	r.keepEvery(t, nil, 3*time.Second)
	r.is(t, "second", registry.DeclaredInstalled)
	before, err := r.store.Index(t.Context(), "second", "")
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, half)
	r.is(t, "second", registry.DeclaredRemoving)
	r.write(t, half+rest)
	r.is(t, "second", registry.DeclaredInstalled)
	if after, err := r.store.Index(t.Context(), "second", ""); err != nil || !after.InstalledAt.Equal(before.InstalledAt) {
		t.Errorf("the index was removed meanwhile: %v, installed at %v and at %v", err, before.InstalledAt, after.InstalledAt)
	}
}

// Entries of pools without a node are demand of their pools, and are installed once a node comes.
func TestEntryWaitsForANodeOfItsPool(t *testing.T) {
	t.Parallel()
	r := start(t)
	idx, second := repository(t, "idx"), repository(t, "second")
	view := testmesh.View(t, r.bus, nil)
	defer view.Close()
	wanted := func(what string, want map[string]int) {
		t.Helper()
		meshtest.Until(t, what, func() bool {
			got := make(map[string]int)
			for pool, of := range view.Awaited() {
				got[pool] = of.Calls
			}
			return maps.Equal(got, want)
		})
	}
	gpu := "rev = \"v1\"\non = { pool = \"gpu\" }"
	r.write(t, entry(idx, gpu)+entry(second, `rev = "v1"`)+entry(idx, "name = \"odd\"\non = { disk = \"fast\" }"))
	stop := r.keep(t, nil)
	wanted("nobody is there", map[string]int{"gpu": 1, "default": 1})
	r.agent(t, "one", nil)
	r.answers(t, "second.t.f", `"none 1"`)
	wanted("of one pool nobody is there", map[string]int{"gpu": 1})
	r.fails(t, "idx", toolmesh.CodeInstallFailed, "one has no labels")
	r.agent(t, "two", map[string]string{"pool": "gpu"})
	r.answers(t, "idx.t.f", `"none 1"`)
	wanted("all pools have what is for them", map[string]int{})
	if e := r.is(t, "odd", registry.DeclaredFailed); !strings.Contains(e.Reason, "disk=fast") {
		t.Errorf("an entry that no pool has the labels of: %+v", e)
	}
	r.write(t, entry(idx, gpu)+entry(second, "on = { pool = \"other\" }"))
	wanted("an entry has another pool", map[string]int{"other": 1})
	stop()
	wanted("nobody keeps the file", map[string]int{})
}

// Of two keepers one acts; the other goes on when it stops.
func TestOneOfTwoKeepersActs(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.agent(t, "one", map[string]string{"pool": "a"})
	url := repository(t, "idx")
	r.write(t, entry(url, `rev = "v1"`+"\non = { pool = \"a\" }"))
	stop := r.keep(t, nil)
	r.answers(t, "idx.t.f", `"none 1"`)
	first := r.holder(t)
	r.keep(t, nil)
	stop()
	var next string
	meshtest.Until(t, "the other one leads", func() bool { next = r.holder(t); return next != "" && next != first })
	r.write(t, entry(url, `rev = "v2"`))
	r.answers(t, "idx.t.f", `"none 2"`)
}

// TestATypoInAnEntryThatIsServedIsLogged: an entry was installed without an error; a later fault of
// it is logged.
func TestATypoInAnEntryThatIsServedIsLogged(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.agent(t, "one", nil)
	idx := repository(t, "idx")
	r.write(t, entry(idx, `rev = "v1"`))
	log := &told{slog.DiscardHandler, "some entries of the file of indexes are not installed", make(chan struct{}, 1)}
	r.keep(t, log)
	r.is(t, "idx", registry.DeclaredInstalled)
	r.write(t, entry(idx, `revv = "v2"`))
	r.fails(t, "idx", toolmesh.CodeInvalidRequest, "revv")
	select {
	case <-log.ch:
	case <-time.After(time.Minute):
		t.Error("the log says nothing of the typo")
	}
}

// told sends a signal when a text is logged.
type told struct {
	slog.Handler
	text string
	ch   chan struct{}
}

func (h *told) Enabled(context.Context, slog.Level) bool { return true }
func (h *told) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *told) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	if strings.Contains(text, h.text) {
		select {
		case h.ch <- struct{}{}:
		default:
		}
	}
	return nil
}

// The log says why the lease is lost, also where no renewal has failed.
func TestALateRenewalLosesTheLease(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.write(t, "index = []\n")
	late := &told{text: "the lease for the indexes is lost: another process may have it error=no renewal came in time", ch: make(chan struct{}, 1)}
	r.keepEvery(t, late, 50*time.Millisecond, func(k *declared.Keeper) { k.SetHold(1) })
	select {
	case <-late.ch:
	case <-t.Context().Done():
		t.Fatal("the log does not say it")
	}
}

// The lease goes to another holder: the keeper stops until that
// one is gone.
func TestALeaseThatIsLostEndsTheTerm(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.write(t, "index = []\n")
	lost := &told{text: "is lost", ch: make(chan struct{}, 1)}
	r.keep(t, lost)
	meshtest.Until(t, "it leads", func() bool { return r.holder(t) != "" })
	_, revision, err := r.store.Declared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for { // it may renew it at the same time
		if revision, err = r.store.KeepDeclared(t.Context(), registry.DeclaredRecord{Holder: "another"}, revision); err == nil {
			break
		}
		if _, revision, err = r.store.Declared(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-lost.ch:
	case <-t.Context().Done():
		t.Fatal("the keeper does not notice")
	}
	if got := r.holder(t); got != "another" {
		t.Errorf("the lease is %q's, want that it is left to who has it", got)
	}
	if err := r.store.LeaveDeclared(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "it leads again", func() bool { got := r.holder(t); return got != "" && got != "another" })
}
