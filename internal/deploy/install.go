package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

type job struct {
	id    string
	emit  func(Line)
	cause func() error // why the build has ended early; nil before it
}

func (j *job) step(step, state string, percent int) {
	j.emit(Line{Job: j.id, Step: step, State: state, Percent: new(max(percent, 0))})
}

// Install installs an index on the whole mesh, and returns once this node
// serves it. emit gets each step and, last, the result; it is called from one goroutine. The
// error is install_failed, also for an index that is for other nodes, invalid_request for a
// malformed request and a taken name, or unavailable. After an error nothing has changed.
func (m *Manager) Install(ctx context.Context, r Request, emit func(Line)) error {
	if r.Source == "" && r.Bundle == "" {
		return invalidRequest("source is missing or empty: give a folder (./dir), a repository (owner/repo) or a URL")
	}
	if r.Name != "" {
		if err := checkName(r.Name); err != nil {
			return err
		}
	}
	if err := r.On.Check(); err != nil {
		return invalidRequest("on: %w", err)
	}
	if err := m.checkPlaced(registry.IndexRecord{Name: r.Name, On: r.On}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.base, cancel)()
	j := &job{id: "job_" + uuid.NewString(), emit: emit}
	work := filepath.Join(m.dir, "jobs", j.id)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return installFailed("folder", "no folder to work in: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // swept at the next start
	last, err := m.install(ctx, r, j, work)
	if err != nil {
		switch {
		case j.cause != nil && errors.Is(j.cause(), errUninstalled):
			err = toolmesh.Errorf(toolmesh.CodeCancelled, "the index was uninstalled while it was being installed, nothing has changed").
				WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
		case ctx.Err() != nil:
			err = toolmesh.Errorf(toolmesh.CodeUnavailable, "the install was interrupted, nothing has changed; install again: %w", err).
				WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
		}
		m.log.Error("install failed", slog.String("job", j.id), slog.String("source", redacted(r.Source)), slog.String("error", err.Error()))
		return err
	}
	emit(last)
	return nil
}

func redacted(source string) string {
	if src, err := index.Parse(source); err == nil {
		return src.String()
	}
	return "(not a source)"
}

// fetched is a fetched source, with the fields of its record.
type fetched struct {
	*index.Tree
	source   string // as it is shown and stored
	identity string // owner of the name
	name     subjects.IndexName
}

func (m *Manager) install(ctx context.Context, r Request, j *job, work string) (Line, error) {
	epoch, err := m.epoch(ctx, r.Session)
	if err != nil {
		return Line{}, err
	}
	f, err := m.fetch(ctx, r, j, filepath.Join(work, "source"))
	if err != nil {
		return Line{}, err
	}
	manifest, err := index.Load(f.Dir)
	if err != nil {
		return Line{}, err
	}
	record := registry.IndexRecord{Session: r.Session, Source: f.identity, Revision: f.Revision, Epoch: epoch, State: registry.IndexInstalled, Managed: r.Managed}
	if r.Bundle != "" {
		record.Owner = r.Owner // for a source that the mesh itself has fetched, the source is enough
	}
	record.Name = cmp.Or(r.Name, manifest.Name, f.name)
	if err := checkName(record.Name); err != nil {
		return Line{}, err
	}
	notes, err := checkEnv(manifest, r)
	if err != nil {
		return Line{}, err
	}
	warnings := slices.Concat(f.Warnings, manifest.Warnings, notes)
	for _, p := range r.Paths {
		if err := p.Check(); err != nil {
			return Line{}, invalidRequest("--path %w", err)
		}
	}
	e := m.entry(key{record.Name, record.Session})
	if err := m.lock(ctx, e, record.Name, j); err != nil {
		return Line{}, err
	}
	defer m.wake() // the loop passes over an index that is being installed
	defer e.mu.Unlock()
	base := ctx
	ctx, publish, end := m.endable(ctx, e, under{job: j.id})
	defer end(nil)
	defer publish()
	j.cause = func() error { return context.Cause(ctx) }
	before, err := m.store.Index(ctx, record.Name, record.Session)
	if err != nil && !errors.Is(err, store.ErrNoKey) {
		return Line{}, unreadable(err)
	}
	if err := m.store.CheckClaim(ctx, record, r.Replace); err != nil {
		return Line{}, err
	}
	var given settings
	if before.Yields(record) && r.Managed == "" { // installing again keeps the earlier paths and variables
		given, record.On = readSettings(before), before.On
	}
	if r.On != nil {
		record.On = r.On
	}
	if err := m.checkPlaced(record); err != nil {
		return Line{}, err
	}
	if len(r.Env) > 0 {
		given.Env = r.Env
	}
	if len(r.Paths) > 0 {
		given.Paths = r.Paths
	}
	b := newBuild(record)
	b.Dir, b.Manifest, b.Env, b.Paths, b.NoBuild = f.Dir, manifest, given.Env, given.Paths, r.NoBuild || r.DryRun
	if r.DryRun {
		plan, _, err := m.plan(ctx, b, j)
		if err == nil {
			err = m.fits(plan)
		}
		return Line{Plan: &plan, Warnings: warnings}, err
	}
	record.Env = slices.Sorted(maps.Keys(given.Env))
	if len(given.Env) > 0 || len(given.Paths) > 0 {
		record.Settings, _ = json.Marshal(given) // texts
	}
	if missing := missingEnv(manifest, given.Env); missing != "" {
		return Line{}, installFailed("env", "index %q needs the variable %s: give it with --env %s (the value is read from your environment)", record.Name, missing, missing)
	}
	record.Bundle = before.Bundle
	if before.Bundle != "" && before.Source == record.Source && before.Owner == record.Owner && same(before, record) && maps.Equal(before.On, record.On) && before.Managed == record.Managed && e.instance != nil && !e.failed && same(e.record, record) {
		j.step("publish", "done", 100)
		return result(e.instance, warnings), nil
	}
	if r.NoBuild {
		var plan Plan
		if plan, b.Lock, err = m.plan(ctx, b, j); err == nil && len(plan.Builds)+len(plan.Init) > 0 {
			if err := m.fits(plan); err != nil {
				return Line{}, err
			}
			err = installFailed("builds", "installing index %q runs code of it, or of packages that it needs, which the request does not allow", record.Name).
				WithDetail("builds", plan.Builds).WithDetail("plan", plan)
		}
		if err != nil {
			return Line{}, err
		}
	}
	i, err := m.build(ctx, e, f, b, &record, j, work)
	if err == nil {
		if err = errUninstalled; publish() {
			err = m.commit(base, e, i, before, record, r.Replace, j, bundleFile(work))
		}
	}
	if err != nil {
		if i != nil {
			m.discard(base, e, i)
		}
		return Line{}, err
	}
	if before.Bundle != record.Bundle {
		m.release(before.Bundle)
	}
	return result(i, warnings), nil
}

func result(i Instance, warnings []string) Line {
	b := i.Build()
	l := Line{
		Index: b.Name, Revision: b.Revision, Warnings: slices.Concat(warnings, i.Warnings()),
		Tools: []subjects.ToolID{}, Unavailable: append([]NotServed{}, i.Unavailable()...),
	}
	for _, d := range i.Descriptors() {
		l.Tools = append(l.Tools, d.ID)
	}
	return l
}

// fetch brings the source into dest.
func (m *Manager) fetch(ctx context.Context, r Request, j *job, dest string) (fetched, error) {
	j.step("fetch", "running", 0)
	if r.Bundle != "" {
		return m.fetchBundle(ctx, r, j, dest)
	}
	src, err := index.Parse(r.Source)
	if err != nil {
		return fetched{}, err
	}
	if src.Kind != index.KindGit {
		// It would be a folder of this machine, with all that the agent's user can read.
		return fetched{}, invalidRequest("a folder or a file is installed as a bundle that its client puts into the mesh: mesh install does")
	}
	tree, err := index.Fetch(ctx, src, dest, r.Rev, index.FetchOptions{Public: !m.opts.PrivateSources, Apart: m.opts.Apart})
	if err != nil {
		return fetched{}, err
	}
	j.step("fetch", "done", 20)
	src.Rev = ""
	return fetched{tree, src.String(), src.Identity(), src.Name}, nil
}

// fetchBundle fetches a folder that the client has uploaded.
func (m *Manager) fetchBundle(ctx context.Context, r Request, j *job, dest string) (fetched, error) {
	if src, err := index.Parse(r.Source); err == nil && !src.Local() {
		return fetched{}, invalidRequest("%s is fetched by the agent itself: send no bundle with it", src)
	}
	p, err := index.Place(ctx, dest, filepath.Join(filepath.Dir(dest), "own"), r.Bundle, func() (io.ReadCloser, error) {
		bundle, err := m.bus.GetBundle(ctx, r.Bundle)
		if err != nil {
			return nil, installFailed("bundle", "the bundle %s is not in the mesh: %w", r.Bundle, err)
		}
		return bundle, nil
	})
	if err != nil {
		return fetched{}, err
	}
	f := fetched{Tree: &index.Tree{Dir: dest, Files: p.Files, Revision: r.Bundle}, source: r.Source, identity: "folder:" + r.Source}
	if src, err := index.Parse(r.Source); err == nil {
		f.source, f.name = src.String(), src.Name
		if src.Kind != index.KindGit { // a fetched repository is proof, a caller's word is not
			f.identity = src.Identity()
		}
	}
	var i index.Info
	if json.Unmarshal(p.Meta[index.InfoFile], &i) == nil && i.Revision != "" {
		f.Revision = i.Revision
	}
	j.step("fetch", "done", 20)
	return f, nil
}

func checkName(name subjects.IndexName) error {
	token, err := subjects.EncodeToken(string(name))
	if err != nil || token != string(name) {
		return invalidRequest("%q cannot be an index's name: 1 to 64 of A-Z a-z 0-9 _ - (choose one with --name)", name)
	}
	return nil
}

// invalidRequest is the error of a wrong request, before anything began.
func invalidRequest(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...).WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
}

// checkEnv checks the given variables against the declared ones. The notes name those that are not
// declared: an index may read more than it declares.
func checkEnv(manifest *index.Manifest, r Request) (notes []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		if strings.ContainsRune(r.Env[name], 0) {
			return nil, installFailed("env", "the value of --env %s has a NUL character, which no variable can have: leave it out", name)
		}
		at := slices.IndexFunc(manifest.Env, func(v index.EnvVar) bool { return v.Name == name })
		if at < 0 {
			if err := index.CheckVariable(name); err != nil {
				return nil, installFailed("env", "--env %w", err)
			}
			notes = append(notes, "the index does not declare "+name+": it is given to all its tools")
		} else if manifest.Env[at].Secret && slices.Contains(r.Literal, name) {
			return nil, installFailed("env", "%s is a secret and must not stand on a command line: set it in your environment and give --env %s", name, name)
		}
	}
	return notes, nil
}

// missingEnv names a required variable of all tools that has no value.
func missingEnv(manifest *index.Manifest, env map[string]string) string {
	for _, v := range manifest.Env {
		if _, ok := env[v.Name]; !ok && v.Required && len(v.Tools) == 0 {
			return v.Name
		}
	}
	return ""
}

// plan returns the plan of a fetched source. The lock is nil if making it builds packages.
func (m *Manager) plan(ctx context.Context, b Build, j *job) (p Plan, lock []byte, err error) {
	j.step("lock", "running", 20)
	lock, err = m.builder.Lock(ctx, b, j.step)
	builds := ToBuild(err)
	if err != nil && builds == nil {
		return Plan{}, nil, err
	}
	b.Lock = lock
	if p, err = m.builder.Plan(ctx, b, j.step); err != nil {
		return Plan{}, nil, err
	}
	p.Index, p.Revision, p.Tools, p.Builds = b.Name, b.Revision, []subjects.ToolID{}, append([]string{}, slices.Concat(builds, p.Builds)...)
	p.Init, p.Variables = append([]string{}, b.Manifest.Init...), append([]index.EnvVar{}, b.Manifest.Env...)
	p.Paths = append([]index.Folder{}, slices.Concat(b.Manifest.Paths, b.Paths)...)
	p.Network = p.Network || len(p.Builds)+len(p.Init) > 0
	for _, name := range b.Manifest.Tools {
		p.Tools = append(p.Tools, subjects.ToolID(string(b.Name)+"."+name))
	}
	return p, lock, nil
}

// fits refuses a plan above a third of a message, as an error repeats its list of packages to
// build. A truncated plan could hide steps.
func (m *Manager) fits(p Plan) error {
	data, _ := json.Marshal(p) // of texts and flags
	if most := m.bus.MaxPayload() / 3; int64(len(data)) > most {
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge,
			"the plan of index %q has %d bytes, and this broker allows %d: install it without a plan, by mesh install --yes", p.Index, len(data), most).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	}
	return nil
}

// ToBuild returns the packages that an error says would have to be built.
func ToBuild(err error) []string {
	if e := toolmesh.AsError(err); e != nil && e.Details["reason"] == "builds" {
		names, _ := e.Details["builds"].([]string)
		return names
	}
	return nil
}

// build resolves, packs and imports a fetched source, and completes the record. It resolves only
// what has no lock yet. After an error the instance, if there is one, is the caller's to discard.
func (m *Manager) build(ctx context.Context, e *entry, f fetched, b Build, record *registry.IndexRecord, j *job, work string) (i Instance, err error) {
	j.step("lock", "running", 20)
	if b.Lock == nil {
		if b.Lock, err = m.builder.Lock(ctx, b, j.step); err != nil {
			return nil, err
		}
	}
	j.step("lock", "done", 35)
	j.step("bundle", "running", 35)
	info, _ := json.Marshal(index.Info{Source: f.source, Revision: f.Revision}) // texts
	file, err := os.Create(bundleFile(work))                                    //nolint:gosec // a path of our own
	if err != nil {
		return nil, installFailed("folder", "the bundle cannot be written: %w", err)
	}
	defer file.Close() //nolint:errcheck // unpacking verifies the content
	if record.Bundle, err = index.Pack(ctx, file, f.Dir, f.Files, map[string][]byte{index.LockFile: b.Lock, index.InfoFile: info}); err != nil {
		return nil, err
	}
	if b.Dir, err = m.folder(b.Name, b.Session, record.Bundle); err != nil {
		return nil, err
	}
	defer func() {
		if i == nil {
			m.clean(e, b.Dir)
		}
	}()
	if err := m.place(ctx, &b, record.Bundle, func() (io.ReadCloser, error) { return os.Open(bundleFile(work)) }); err != nil {
		return nil, err
	}
	j.step("bundle", "done", 40)
	j.step("build", "running", 40)
	if i, err = m.open(ctx, b, j.step); err != nil {
		return nil, err
	}
	j.step("build", "done", 80)
	if len(i.Descriptors()) == 0 {
		return i, nothingServed(b, i.Unavailable())
	}
	j.step("store", "running", 80)
	if err := m.ensureBundle(ctx, record.Bundle, bundleFile(work)); err != nil {
		return i, err
	}
	j.step("store", "done", 90)
	return i, nil
}

// bundleFile is where an install packs its bundle.
func bundleFile(work string) string { return filepath.Join(work, "bundle") }

// unavailableMost is how many tools an error lists.
const unavailableMost = 100

// nothingServed is the error of an index that has no servable tool.
func nothingServed(b Build, all []NotServed) error {
	var reasons []string
	for _, u := range all[:min(len(all), 3)] {
		reasons = append(reasons, fmt.Sprintf("%s: %s", u.ID, u.Reason))
	}
	if more := len(all) - len(reasons); more > 0 {
		reasons = append(reasons, fmt.Sprintf("and %d more", more))
	}
	return installFailed("tools", "none of the %d tools of index %q can be served: %s", len(all), b.Name, strings.Join(reasons, "; ")).
		WithDetail("unavailable", all[:min(len(all), unavailableMost)])
}

// commit writes the record and serves the index here; e.mu is held. After an error it takes the
// record back. The record's bundle is in the mesh, and in a file.
func (m *Manager) commit(ctx context.Context, e *entry, i Instance, before, record registry.IndexRecord, over bool, j *job, bundle string) error {
	j.step("publish", "running", 90)
	m.hold(ctx, before, record)
	record.InstalledAt = m.bus.Time().Now.UTC()
	if !record.InstalledAt.After(before.InstalledAt) {
		// Nodes do not know the broker's time to the microsecond, and records need an order.
		record.InstalledAt = before.InstalledAt.Add(time.Microsecond)
	}
	record.Tools = m.listed(ctx, i)
	claim := m.store.ClaimIndex
	if over {
		claim = m.store.ReplaceIndex
	}
	err := claim(ctx, record)
	if err == nil {
		err = m.ensureBundle(ctx, record.Bundle, bundle) // a node that saw no record may have removed it
	}
	if err == nil {
		// The end of a session removes the indexes that it sees. A session that exists after
		// the record was written sees this one.
		err = m.stands(ctx, record)
	}
	if err == nil {
		err = m.replace(ctx, e, i, record)
	}
	if err != nil {
		m.takeBack(ctx, before, record)
		if record.Bundle != before.Bundle {
			m.release(record.Bundle)
		}
		return err
	}
	j.step("publish", "done", 100)
	return nil
}

// listedBytes is how large the list of an index's tools in its record may be.
const listedBytes = 128 << 10

// listed returns the tools for the index's record, for callers while no node serves them; nil if
// they are too many or cannot be stored.
func (m *Manager) listed(ctx context.Context, i Instance) []registry.ToolRoute {
	all := i.Descriptors()
	digests, err := m.store.PutDescriptors(ctx, all...)
	if err != nil {
		m.log.Warn("the tools are not known while no node serves them", slog.String("index", string(i.Build().Name)), slog.String("error", err.Error()))
		return nil
	}
	routes := make([]registry.ToolRoute, len(all))
	for n, d := range all {
		a := d.Annotations
		routes[n] = registry.ToolRoute{ID: d.ID, Digest: digests[n], Streaming: a.Streaming, Idempotent: a.Idempotent, ParallelSafe: a.ParallelSafe}
	}
	if data, err := json.Marshal(routes); err != nil || int64(len(data)) > min(listedBytes, m.bus.MaxPayload()/2) {
		return nil
	}
	return routes
}

func unreadable(err error) error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "the registry cannot be read: %w", err)
}

// epoch returns the epoch of an index's session: empty for a session that was not created, and
// for the whole mesh.
func (m *Manager) epoch(ctx context.Context, session subjects.SessionID) (string, error) {
	if session == "" {
		return "", nil
	}
	epoch, err := m.store.Epoch(ctx, session)
	if err != nil {
		err = unreadable(err)
	}
	return epoch, err
}

// stands refuses an index if its session has ended: another session may have its name.
func (m *Manager) stands(ctx context.Context, record registry.IndexRecord) error {
	now, err := m.epoch(ctx, record.Session)
	if err == nil && now != record.Epoch {
		err = toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q ended during the install of index %q: create the session, then install again", record.Session, record.Name).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	}
	return err
}

// expire removes an index of a session that neither the view nor the registry knows: the expiry of
// a session removes nothing by itself.
func (m *Manager) expire(ctx context.Context, seen registry.IndexRecord) {
	if toolmesh.CodeOf(m.stands(ctx, seen)) != toolmesh.CodeSessionNotFound {
		return
	}
	now, err := m.store.Index(ctx, seen.Name, seen.Session)
	if err == nil && now.Epoch == seen.Epoch {
		if err = m.store.DeleteIndex(ctx, seen.Name, seen.Session); err == nil {
			m.release(now.Bundle)
		}
	}
	if err != nil && !errors.Is(err, store.ErrNoKey) {
		m.log.Warn("index of an ended session could not be removed", slog.String("index", string(seen.Name)), slog.String("error", err.Error()))
	}
}

// takeBack puts the earlier record back, or none, if ours is there.
func (m *Manager) takeBack(ctx context.Context, before, record registry.IndexRecord) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackWithin)
	defer cancel()
	now, err := m.store.Index(ctx, record.Name, record.Session)
	switch {
	case errors.Is(err, store.ErrNoKey), err == nil && (now.Bundle != record.Bundle || !now.InstalledAt.Equal(record.InstalledAt)):
		return
	case err == nil && before.Name != "":
		before.InstalledAt = record.InstalledAt.Add(time.Microsecond) // others may have seen ours
		err = m.store.ReplaceIndex(ctx, before)
	case err == nil:
		err = m.store.DeleteIndex(ctx, record.Name, record.Session)
	}
	if err != nil {
		m.log.Error("record of a failed install could not be removed", slog.String("index", string(record.Name)), slog.String("error", err.Error()))
	}
}

// takeBackWithin bounds the attempts to take a record back.
const takeBackWithin = 5 * time.Second

// Uninstall removes an index from the mesh. The other nodes follow; this one
// has withdrawn it when Uninstall returns. An index that is not installed is not_found; an
// impossible or empty name is invalid_request.
func (m *Manager) Uninstall(ctx context.Context, name subjects.IndexName, session subjects.SessionID) error {
	if name == "" {
		return invalidRequest("name is missing or empty: it says which index to uninstall")
	}
	if _, err := subjects.IndexKey(name, session); err != nil {
		return invalidRequest("%w", err)
	}
	k := key{name, session}
	m.mu.Lock()
	e := m.entries[k]
	m.mu.Unlock()
	ended := e != nil && m.interrupt(e, func(under) bool { return true })
	before, err := m.store.Index(ctx, name, session)
	if errors.Is(err, store.ErrNoKey) && ended {
		e.mu.Lock() // until the job has ended
		defer e.mu.Unlock()
		return nil
	}
	if errors.Is(err, store.ErrNoKey) {
		known := make([]string, 0)
		for _, r := range m.view.Indexes() {
			if r.Session == session {
				known = append(known, string(r.Name))
			}
		}
		hint, owner := "mesh indexes lists what is", ""
		if session != "" {
			owner = fmt.Sprintf(" for session %q alone", session)
		}
		if near := tool.Nearest(string(name), known, 1); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		return toolmesh.Errorf(toolmesh.CodeNotFound, "no index %q is installed%s; %s", name, owner, hint).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	}
	if err != nil {
		return unreadable(err)
	}
	if err := m.store.DeleteIndex(ctx, name, session); err != nil {
		return err
	}
	m.release(before.Bundle)
	e = m.entry(k)
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := m.store.Index(ctx, name, session); err == nil {
		return nil // installed again meanwhile
	}
	m.drop(ctx, k, e)
	return nil
}
