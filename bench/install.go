package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The section "install": what a user waits for, from the request to install an
// index until its tools are served, against uv alone, which makes an environment
// of the same packages with their bytecode. Each round has a mesh of its own.

const (
	installCold = "cold" // nothing is downloaded yet
	installWarm = "warm" // uv's cache has all
	restart     = "restart"

	installRounds = 5
	restartTools  = 12
)

// packages are what the index needs: large, and with much to compile.
const packages = "numpy==2.2.6\npydantic==2.11.7\n"

const packagesTools = `
import numpy, pydantic

class Point(pydantic.BaseModel):
    x: float
    y: float

def norm(point: Point) -> float:
    """The length of a vector."""
    return float(numpy.hypot(point.x, point.y))
`

func (p *plan) measureInstall(ctx context.Context, stderr io.Writer, dir string, r *result) error {
	dir = filepath.Join(dir, "install")
	heavy := map[string]string{"tools.toml": "[index]\ntools = [\"t.norm\"]\n", "t.py": packagesTools, "requirements.txt": packages}
	light := map[string]string{"t.py": engineTools}
	var names []string
	for i := range restartTools {
		names = append(names, fmt.Sprintf("%q", fmt.Sprintf("t.weather%d", i)))
		light["t.py"] += fmt.Sprintf("weather%d = weather\n", i)
	}
	light["tools.toml"] = "[index]\ntools = [" + strings.Join(names, ", ") + "]\n"
	source := filepath.Join(dir, "heavy")
	if err := makeRepository(source, heavy); err != nil {
		return err
	}
	if err := makeRepository(filepath.Join(dir, "light"), light); err != nil {
		return err
	}
	// The agent's own uv is what both sides use, and its download counts for none.
	if _, err := p.installOnce(ctx, stderr, filepath.Join(dir, "first"), source); err != nil {
		return err
	}
	if own, _ := filepath.Glob(filepath.Join(dir, "first", "agent", "executor", "uv-*", "bin")); len(own) > 0 {
		if err := os.Setenv("PATH", own[0]+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
			return err
		}
	}
	samples := make(map[string][]answer)
	r.samples["install"] = samples
	note := func(what string, took time.Duration) {
		samples[what] = append(samples[what], answer{P50: took})
	}
	for round := range min(p.Rounds, installRounds) {
		in := func(name string) string { return filepath.Join(dir, fmt.Sprintf("%s-%d", name, round)) }
		turns := []struct {
			what string
			do   func() (time.Duration, error)
		}{
			{installCold, func() (time.Duration, error) { return p.installOnce(ctx, stderr, in("cold"), source) }},
			{installWarm, func() (time.Duration, error) {
				if err := moveCache(in("cold"), in("warm")); err != nil {
					return 0, err
				}
				return p.installOnce(ctx, stderr, in("warm"), source)
			}},
			{"uv " + installCold, func() (time.Duration, error) { return uvAlone(ctx, in("uv"), source) }},
			{"uv " + installWarm, func() (time.Duration, error) { return uvAlone(ctx, in("uv"), source) }},
		}
		if round%2 == 1 {
			turns = slices.Concat(turns[2:], turns[:2]) // neither side always goes first
		}
		for _, turn := range turns {
			took, err := turn.do()
			if err != nil {
				return err
			}
			note(turn.what, took)
		}
	}
	return p.restarts(ctx, stderr, filepath.Join(dir, "again"), filepath.Join(dir, "light"), func(took time.Duration) { note(restart, took) })
}

// moveCache has the next mesh begin with what the one before has downloaded.
func moveCache(from, to string) error {
	cache := filepath.Join("agent", "executor", "packages")
	if err := os.MkdirAll(filepath.Join(to, filepath.Dir(cache)), 0o750); err != nil {
		return err
	}
	return os.Rename(filepath.Join(from, cache), filepath.Join(to, cache))
}

func (p *plan) installOnce(ctx context.Context, stderr io.Writer, dir, source string) (time.Duration, error) {
	s, err := start(ctx, stderr, dir, "bench-install", "broker", "agent", "caller")
	defer s.end()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = s.caller.ask(request{Do: "install", Text: "file://" + source})
	return time.Since(began), err
}

func uvAlone(ctx context.Context, dir, source string) (time.Duration, error) {
	venv := filepath.Join(dir, "venv")
	if err := os.RemoveAll(venv); err != nil {
		return 0, err
	}
	began := time.Now()
	for _, args := range [][]string{
		{"venv", "--quiet", venv},
		{"pip", "install", "--quiet", "--compile-bytecode", "--python", venv, "--requirements", filepath.Join(source, "requirements.txt")},
	} {
		cmd := exec.CommandContext(ctx, "uv", args...) //nolint:gosec // fixed arguments
		cmd.Env = append(os.Environ(), "UV_CACHE_DIR="+filepath.Join(dir, "cache"), "UV_SYSTEM_CERTS=true", "UV_PYTHON_DOWNLOADS=never")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("uv %s: %w: %s", args[0], err, out)
		}
	}
	return time.Since(began), nil
}

// restarts has an agent start again and again where an index is installed.
func (p *plan) restarts(ctx context.Context, stderr io.Writer, dir, source string, note func(time.Duration)) error {
	s, err := start(ctx, stderr, dir, "bench-install", "broker", "agent", "caller")
	defer s.end()
	if err != nil {
		return err
	}
	if _, err := s.caller.ask(request{Do: "install", Text: "file://" + source}); err != nil {
		return err
	}
	for range min(p.Rounds, 2*installRounds) {
		s.agent.end()
		again, err := startChild(ctx, stderr, "agent", s.broker.hello, filepath.Join(dir, "agent"), "bench-install")
		if err != nil {
			return err
		}
		s.agent, s.all[1] = again, again
		a, err := again.ask(request{Do: "ready"})
		if err != nil {
			return err
		}
		note(a.Took)
	}
	return nil
}

func (r *result) concludeInstall() {
	got := r.samples["install"]
	if len(got) == 0 {
		return
	}
	for _, one := range []struct{ what, says string }{{installCold, "nothing cached"}, {installWarm, "all cached"}} {
		r.compared("install: numpy and pydantic, "+one.says+", until served, against uv with bytecode, in ms",
			got[one.what], got["uv "+one.what], p50, millis, &bound{must: 1.2, goal: 1})
	}
	took := medianOf(got[restart], p50)
	l := line{What: fmt.Sprintf("install: an agent that starts again serves %d tools, in ms", restartTools), Ours: millis(took)}
	l.Must, l.Verdict = bound{must: 250, goal: 100}.verdict(took / 1e6)
	r.add(l, nil)
}
