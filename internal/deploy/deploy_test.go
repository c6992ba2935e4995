package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// node is one manager with a workshop of a test's own: registry, bundles and
// broker are real, nothing is imported.
type node struct {
	*deploy.Manager
	store    *registry.Store
	bus      *bus.Bus
	dir      string
	workshop *workshop
}

// workshop is a [deploy.Builder] and [deploy.Server] with the behaviour that the test sets; it
// records its calls.
type workshop struct {
	mu        sync.Mutex
	opening   func(ctx context.Context, b deploy.Build) error // before an instance is made
	publish   func(b deploy.Build) error
	opened    []deploy.Build
	published map[string]deploy.Build // by name
	failed    map[string]string       // reasons by name
	withdrawn []string
	open      int
	changed   chan struct{} // closed and replaced with each change
}

// set sets the functions that run before an instance is made and when one is published.
func (w *workshop) set(opening func(context.Context, deploy.Build) error, publish func(deploy.Build) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opening, w.publish = opening, publish
}

func (w *workshop) note(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits until ok returns true of the workshop.
func (w *workshop) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		w.mu.Lock()
		done, changed := ok(), w.changed
		w.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%s: it did not come to that", what)
		}
	}
}

func (w *workshop) serves(t *testing.T, name, revision string) {
	t.Helper()
	w.await(t, name+" at "+revision+" is served", func() bool { return w.published[name].Revision == revision })
}

func (w *workshop) Open(ctx context.Context, b deploy.Build, _ deploy.Progress) (deploy.Instance, error) {
	w.mu.Lock()
	opening := w.opening
	w.mu.Unlock()
	if opening != nil {
		if err := opening(ctx, b); err != nil {
			return nil, err
		}
	}
	w.note(func() { w.opened = append(w.opened, b); w.open++ })
	return &instance{w: w, build: b}, nil
}

func (w *workshop) Publish(_ context.Context, i deploy.Instance) error {
	w.mu.Lock()
	publish := w.publish
	w.mu.Unlock()
	if publish != nil {
		if err := publish(i.Build()); err != nil {
			return err
		}
	}
	w.note(func() { w.published[string(i.Build().Name)] = i.Build(); delete(w.failed, string(i.Build().Name)) })
	return nil
}

func (w *workshop) PublishFailed(_ context.Context, b deploy.Build, reason string) error {
	w.note(func() { w.failed[string(b.Name)] = reason })
	return nil
}

func (w *workshop) Withdraw(_ context.Context, name subjects.IndexName, _ subjects.SessionID) error {
	w.note(func() { delete(w.published, string(name)); w.withdrawn = append(w.withdrawn, string(name)) })
	return nil
}

type instance struct {
	w     *workshop
	build deploy.Build
}

func (i *instance) Build() deploy.Build { return i.build }

func (i *instance) Warnings() []string { return nil }

func (i *instance) Unavailable() []deploy.NotServed {
	var all []deploy.NotServed
	for _, name := range i.build.Manifest.Tools {
		if strings.HasSuffix(name, ".broken") {
			all = append(all, deploy.NotServed{ID: subjects.ToolID(string(i.build.Name) + "." + name), Reason: "it is broken"})
		}
	}
	return all
}

func (i *instance) Close(context.Context) error {
	i.w.note(func() { i.w.open-- })
	return nil
}

// start runs a manager in a new folder, or in dir, until the test ends.
func start(t *testing.T, s *meshtest.Server, dir string) *node {
	t.Helper()
	return startWith(t, s, dir, deploy.Options{})
}

func startWith(t *testing.T, s *meshtest.Server, dir string, opts deploy.Options, changes ...func(*deploy.Manager)) *node {
	t.Helper()
	var log *slog.Logger
	if meshtest.ShowLogs() {
		log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	if dir == "" {
		dir = t.TempDir()
	}
	b := testmesh.Bus(t, s.Connect(t), &bus.Options{Logger: log})
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	w := &workshop{published: make(map[string]deploy.Build), failed: make(map[string]string), changed: make(chan struct{})}
	n := &node{store: testmesh.Store(t, b), bus: b, dir: dir, workshop: w}
	opts.Logger, opts.PrivateSources = log, true
	n.Manager = deploy.New(b, view, n.store, w, w, dir, &opts)
	for _, change := range changes {
		change(n.Manager)
	}
	n.Start()
	t.Cleanup(func() { n.stop(t) })
	return n
}

func (n *node) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	n.workshop.mu.Lock()
	defer n.workshop.mu.Unlock()
	if n.workshop.open != 0 {
		t.Errorf("%d instances are open after Stop", n.workshop.open)
	}
}

// install installs and returns the last line.
func (n *node) install(t *testing.T, r deploy.Request) (deploy.Line, error) {
	t.Helper()
	var last deploy.Line
	err := n.Install(t.Context(), r, func(l deploy.Line) { last = l })
	return last, err
}

func (n *node) mustInstall(t *testing.T, r deploy.Request) deploy.Line {
	t.Helper()
	last, err := n.install(t, r)
	if err != nil {
		t.Fatalf("install %s: %v", r.Source, err)
	}
	return last
}

// record reads an index's record; nil if it does not exist.
func (n *node) record(t *testing.T, name string) *registry.IndexRecord {
	t.Helper()
	r, err := n.store.Index(t.Context(), subjects.IndexName(name), "")
	if errors.Is(err, store.ErrNoKey) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

// folders lists the manager's folders on disk; of its own only those without a bundle.
func (n *node) folders(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"jobs/*", "indexes/*/*", "indexes/*/.*", "records/*/*"} {
		found, err := filepath.Glob(filepath.Join(n.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			rel, err := filepath.Rel(n.dir, f)
			if err != nil {
				t.Fatal(err)
			}
			below, ours := strings.CutPrefix(rel, "records/")
			if _, err := os.Stat(filepath.Join(n.dir, "indexes", below)); !ours || err != nil {
				all = append(all, rel)
			}
		}
	}
	slices.Sort(all)
	return all
}

// awaitFolders waits for exactly these folders: a folder is removed after the last call in it.
func (n *node) awaitFolders(t *testing.T, want ...string) {
	t.Helper()
	await(t, "only what is needed is on disk", func() []string { return n.folders(t) }, want)
}

// await waits until have returns exactly want.
func await(t *testing.T, what string, have func() []string, want []string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("what there is (-want +got):\n%s", cmp.Diff(want, got))
		}
	}()
	meshtest.Until(t, what, func() bool {
		got = have()
		return slices.Equal(got, want)
	})
}

const oneTool = "[index]\ntools = [\"t.tool\"]\n"

// source is a repository with one tool.
func source(t *testing.T, name string) (url, dir string) {
	t.Helper()
	dir = testmesh.Repository(t, name, map[string]string{"tools.toml": oneTool, "t.py": "def tool(): return 1\n"})
	return "file://" + dir, dir
}

// copyRecord writes the record of an installed index again under another name,
// as if another node had installed it: only the loop of a manager acts on it.
func (n *node) copyRecord(t *testing.T, of, name string) {
	t.Helper()
	r := n.record(t, of)
	r.Name, r.Source = subjects.IndexName(name), "elsewhere/"+name
	if err := n.store.ClaimIndex(t.Context(), *r); err != nil {
		t.Fatal(err)
	}
}

// gate holds builds of one name until it is opened.
type gate struct {
	name    string
	entered chan struct{}
	leave   chan struct{}
	once    sync.Once
}

func newGate(name string) *gate {
	return &gate{name: name, entered: make(chan struct{}), leave: make(chan struct{})}
}

func (g *gate) hold(ctx context.Context, b deploy.Build) error {
	if string(b.Name) != g.name {
		return nil
	}
	g.once.Do(func() { close(g.entered) })
	select {
	case <-g.leave:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestASlowBuildHoldsNothingElseUp(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	fast, _ := source(t, "fast")
	slow, _ := source(t, "slow")
	n.mustInstall(t, deploy.Request{Source: fast})
	g := newGate("slow")
	n.workshop.set(g.hold, nil)
	installed := make(chan error, 1)
	go func() {
		installed <- n.Install(t.Context(), deploy.Request{Source: slow}, func(deploy.Line) {})
	}()
	<-g.entered
	// Rounds of the loop while an install is under way: it must neither wait for
	// it nor take it for something that is not installed.
	for _, name := range []string{"copy1", "copy2", "copy3"} {
		n.copyRecord(t, "fast", name)
		n.workshop.serves(t, name, n.record(t, "fast").Revision)
	}
	close(g.leave)
	if err := <-installed; err != nil {
		t.Fatal(err)
	}
	n.copyRecord(t, "fast", "copy4")
	n.workshop.serves(t, "copy4", n.record(t, "fast").Revision)
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.workshop.mu.Lock()
	defer n.workshop.mu.Unlock()
	if len(n.workshop.withdrawn) > 0 {
		t.Errorf("%v were withdrawn while they were being installed", n.workshop.withdrawn)
	}
	if _, ok := n.workshop.published["slow"]; !ok {
		t.Error("slow is not served after its install")
	}
}

// Builds that hang in every place there is hold up neither other builds nor
// a caller that waits for the node.
func TestHangingBuildsBlockNoOtherInstall(t *testing.T) {
	t.Parallel()
	n := startWith(t, meshtest.Broker(t), "", deploy.Options{}, func(m *deploy.Manager) { m.SetBuildWait(50 * time.Millisecond) })
	fast, _ := source(t, "fast")
	n.mustInstall(t, deploy.Request{Source: fast})
	places := max(2, runtime.GOMAXPROCS(0))
	hung := make(chan struct{}, places)
	n.workshop.set(func(ctx context.Context, b deploy.Build) error {
		if !strings.HasPrefix(string(b.Name), "hang") {
			return nil
		}
		hung <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, nil)
	for i := range places {
		n.copyRecord(t, "fast", fmt.Sprintf("hang%d", i))
	}
	for range places {
		<-hung
	}
	n.copyRecord(t, "fast", "late")
	n.workshop.serves(t, "late", n.record(t, "fast").Revision)
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestASlowBuildOfARecordHoldsNothingElseUp(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	fast, _ := source(t, "fast")
	n.mustInstall(t, deploy.Request{Source: fast})
	g := newGate("held")
	n.workshop.set(g.hold, nil)
	n.copyRecord(t, "fast", "held")
	<-g.entered
	n.copyRecord(t, "fast", "other")
	n.workshop.serves(t, "other", n.record(t, "fast").Revision)
	ready, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Ready(ready); !errors.Is(err, context.Canceled) {
		t.Errorf("Ready while a record is being built: %v", err)
	}
	close(g.leave)
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.workshop.serves(t, "held", n.record(t, "fast").Revision)
	n.workshop.mu.Lock()
	defer n.workshop.mu.Unlock()
	if reason, said := n.workshop.failed["held"]; said {
		t.Errorf("what is served is listed as unavailable: %s", reason)
	}
	if reason, said := n.workshop.failed["other"]; said {
		t.Errorf("what was built at once was listed as unavailable: %s", reason)
	}
}

func TestOthersFollowANodeWhoseClockIsBehind(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	one, two := start(t, s, ""), start(t, s, "")
	url, dir := source(t, "idx")
	first := one.mustInstall(t, deploy.Request{Source: url})
	two.workshop.serves(t, "idx", first.Revision)
	// The record is from a node with a clock that is an hour ahead.
	r := one.record(t, "idx")
	r.InstalledAt = time.Now().Add(time.Hour).UTC()
	r.Revision = "ahead"
	if err := one.store.ClaimIndex(t.Context(), *r); err != nil {
		t.Fatal(err)
	}
	one.workshop.serves(t, "idx", "ahead")
	two.workshop.serves(t, "idx", "ahead")
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	second := one.mustInstall(t, deploy.Request{Source: url})
	if second.Revision == first.Revision {
		t.Fatal("the second install has the first revision")
	}
	two.workshop.serves(t, "idx", second.Revision)
	one.workshop.serves(t, "idx", second.Revision)
}

func TestInstallingAgainBuildsAfterAFailure(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	one, two := start(t, s, ""), start(t, s, "")
	url, dir := source(t, "idx")
	first := one.mustInstall(t, deploy.Request{Source: url})
	two.workshop.serves(t, "idx", first.Revision)
	broken := errors.New("the disk is full")
	two.workshop.set(func(context.Context, deploy.Build) error {
		two.workshop.note(func() { two.workshop.failed["tried"] = "yes" })
		return broken
	}, nil)
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	second := one.mustInstall(t, deploy.Request{Source: url})
	two.workshop.await(t, "the second revision fails on two", func() bool { return two.workshop.failed["tried"] == "yes" })
	if err := two.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := two.install(t, deploy.Request{Source: url}); !errors.Is(err, broken) {
		t.Errorf("installing what this node could not build: %v, want the build's error", err)
	}
	if got := two.record(t, "idx"); got == nil || got.Revision != second.Revision {
		t.Errorf("the record after a failed install is %v", got)
	}
	two.workshop.set(nil, nil)
	if last := two.mustInstall(t, deploy.Request{Source: url}); last.Revision != second.Revision {
		t.Errorf("two reports revision %s, want %s", last.Revision, second.Revision)
	}
	two.workshop.serves(t, "idx", second.Revision)
}

func TestInstallingAgainBuildsNothing(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	first := n.mustInstall(t, deploy.Request{Source: url})
	record := n.record(t, "idx")
	again := n.mustInstall(t, deploy.Request{Source: url})
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the second answer differs:\n%s", diff)
	}
	if diff := cmp.Diff(record, n.record(t, "idx")); diff != "" {
		t.Errorf("the record changed:\n%s", diff)
	}
	n.workshop.mu.Lock()
	defer n.workshop.mu.Unlock()
	if len(n.workshop.opened) != 1 {
		t.Errorf("%d builds, want 1", len(n.workshop.opened))
	}
}

func TestAFailedInstallLeavesNothing(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := start(t, s, "")
	stored := func() int {
		t.Helper()
		objects := 0
		stream, err := n.bus.JetStream().ObjectStore(t.Context(), subjects.ObjectBundles)
		if err != nil {
			t.Fatal(err)
		}
		list, err := stream.List(t.Context())
		if err == nil {
			objects = len(list)
		}
		return objects
	}
	cases := []struct {
		name    string
		opening func(context.Context, deploy.Build) error
		publish func(deploy.Build) error
		files   map[string]string
		want    string
	}{
		{name: "build", want: "no compiler", opening: func(context.Context, deploy.Build) error { return errors.New("no compiler") }},
		{name: "publish", want: "host has stopped", publish: func(deploy.Build) error { return errors.New("the host has stopped") }},
		{name: "broken", want: "it is broken", files: map[string]string{"tools.toml": "[index]\ntools = [\"t.broken\"]\n"}},
	}
	for _, tc := range cases {
		url, dir := source(t, tc.name)
		if tc.files != nil {
			testmesh.Commit(t, dir, tc.files)
		}
		n.workshop.set(tc.opening, tc.publish)
		if _, err := n.install(t, deploy.Request{Source: url}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
		if r := n.record(t, tc.name); r != nil {
			t.Errorf("%s: the record %v is left", tc.name, r)
		}
		n.awaitFolders(t) // the record existed for a moment, and the node began to fetch its source
		n.workshop.mu.Lock()
		if n.workshop.open != 0 {
			t.Errorf("%s: %d instances are left", tc.name, n.workshop.open)
		}
		n.workshop.mu.Unlock()
	}
	if got := stored(); got > 1 { // a failed publication may be tried again
		t.Errorf("%d bundles are left", got)
	}
	// The names are free for other sources.
	n.workshop.set(nil, nil)
	other, _ := source(t, "other")
	for _, tc := range cases {
		n.mustInstall(t, deploy.Request{Source: other, Name: subjects.IndexName(tc.name)})
	}
}

func TestAFailedUpgradeLeavesTheEarlierRevision(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	one, two := start(t, s, ""), start(t, s, "")
	url, dir := source(t, "idx")
	first := one.mustInstall(t, deploy.Request{Source: url})
	two.workshop.serves(t, "idx", first.Revision)
	before := one.record(t, "idx")
	folders := one.folders(t)
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	one.workshop.set(nil, func(b deploy.Build) error {
		if b.Revision != first.Revision {
			return errors.New("not now")
		}
		return nil
	})
	if _, err := one.install(t, deploy.Request{Source: url}); err == nil {
		t.Fatal("the upgrade did not fail")
	}
	after := one.record(t, "idx")
	if after == nil || after.Revision != before.Revision || after.Bundle != before.Bundle {
		t.Errorf("the record is %v, want that of %s", after, before.Revision)
	}
	one.awaitFolders(t, folders...)
	// Two may have seen the second revision for a moment; it comes back.
	two.copyRecord(t, "idx", "mark")
	two.workshop.serves(t, "mark", first.Revision)
	two.workshop.serves(t, "idx", first.Revision)
	one.workshop.serves(t, "idx", first.Revision)
}

func TestStopInTheMiddleOfAnInstall(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	g := newGate("idx")
	n.workshop.set(g.hold, nil)
	installed := make(chan error, 1)
	go func() {
		installed <- n.Install(t.Context(), deploy.Request{Source: url}, func(deploy.Line) {})
	}()
	<-g.entered
	n.stop(t)
	err := <-installed
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || !strings.Contains(e.Message, "install again") {
		t.Errorf("the install that was cut short: %v", err)
	}
	if r := n.record(t, "idx"); r != nil {
		t.Errorf("the record %v is left", r)
	}
	if left := n.folders(t); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestUnneededIndexesLeaveTheDisk(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := start(t, s, "")
	url, dir := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	first := n.folders(t)
	if len(first) != 1 {
		t.Fatalf("folders %v, want one", first)
	}
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	n.mustInstall(t, deploy.Request{Source: url})
	second := filepath.Join("indexes", "idx", n.record(t, "idx").Bundle)
	n.awaitFolders(t, second)
	// Files of a killed process are removed when the next one starts.
	n.stop(t)
	for _, left := range []string{"jobs/job_1/source", first[0], "indexes/idx/.unpack-1", "indexes/gone/0123", "records/idx/.unpack-2", "records/lost/0123"} {
		if err := os.MkdirAll(filepath.Join(n.dir, left), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	again := start(t, s, n.dir)
	again.awaitFolders(t, second)
	again.workshop.serves(t, "idx", n.record(t, "idx").Revision)
	if err := again.Uninstall(t.Context(), "idx", ""); err != nil {
		t.Fatal(err)
	}
	again.awaitFolders(t)
	meshtest.Until(t, "the index's folders are gone", func() bool {
		_, err := os.Stat(filepath.Join(n.dir, "indexes", "idx"))
		_, own := os.Stat(filepath.Join(n.dir, "records", "idx"))
		return errors.Is(err, fs.ErrNotExist) && errors.Is(own, fs.ErrNotExist)
	})
}

func TestTwoInstallsOfOneNameAtOnce(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nodes := []*node{start(t, s, ""), start(t, s, "")}
	ours, _ := source(t, "ours")
	theirs, _ := source(t, "theirs")
	for _, tc := range []struct {
		name string
		on   [2]*node
	}{{"same node", [2]*node{nodes[0], nodes[0]}}, {"two nodes", [2]*node{nodes[0], nodes[1]}}} {
		name := subjects.IndexName(strings.ReplaceAll(tc.name, " ", "-"))
		var wg sync.WaitGroup
		var errs [2]error
		for i, url := range []string{ours, theirs} {
			wg.Go(func() {
				errs[i] = tc.on[i].Install(t.Context(), deploy.Request{Source: url, Name: name}, func(deploy.Line) {})
			})
		}
		wg.Wait()
		var failed error
		won := -1
		for i, err := range errs {
			if err == nil {
				won = i
			} else {
				failed = err
			}
		}
		if won < 0 || failed == nil {
			t.Fatalf("%s: errors %v, want one", tc.name, errs)
		}
		if e := toolmesh.AsError(failed); e.Code != toolmesh.CodeInvalidRequest || !strings.Contains(e.Message, "--name") {
			t.Errorf("%s: the loser hears %v", tc.name, failed)
		}
		winner := tc.on[won]
		winner.workshop.serves(t, string(name), winner.record(t, string(name)).Revision)
		for _, n := range nodes {
			n.workshop.serves(t, string(name), winner.record(t, string(name)).Revision)
			n.awaitFolders(t, foldersOf(t, nodes[0])...)
		}
		// The same source twice at once is one index, and both succeed.
		both := subjects.IndexName("both-" + string(name))
		for i := range errs {
			wg.Go(func() {
				errs[i] = tc.on[i].Install(t.Context(), deploy.Request{Source: ours, Name: both}, func(deploy.Line) {})
			})
		}
		wg.Wait()
		if errs[0] != nil || errs[1] != nil {
			t.Errorf("%s: the same source twice: %v", tc.name, errs)
		}
	}
}

// foldersOf is where the installed indexes are, as the records say.
func foldersOf(t *testing.T, n *node) []string {
	t.Helper()
	var all []string
	for _, name := range []string{"same-node", "both-same-node", "two-nodes", "both-two-nodes"} {
		if r := n.record(t, name); r != nil {
			all = append(all, filepath.Join("indexes", name, r.Bundle))
		}
	}
	slices.Sort(all)
	return all
}

func TestABundleThatCannotBeStoredIsAFailedInstall(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := start(t, s, "")
	url, dir := source(t, "idx")
	noise := make([]byte, 600<<10)
	for i := range noise {
		noise[i] = byte(i * i >> 7 * 31 >> 3)
	}
	if err := os.WriteFile(filepath.Join(dir, "noise.bin"), noise, 0o644); err != nil {
		t.Fatal(err)
	}
	testmesh.Commit(t, dir, nil)
	// No object store to put it into.
	if err := n.bus.JetStream().DeleteObjectStore(t.Context(), subjects.ObjectBundles); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := n.Install(ctx, deploy.Request{Source: url}, func(deploy.Line) {}); err == nil {
		t.Fatal("an install whose bundle is nowhere is a success")
	}
	if r := n.record(t, "idx"); r != nil {
		t.Errorf("the record %v is left", r)
	}
	if left := n.folders(t); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
