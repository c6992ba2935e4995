package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/toolmesh/toolmesh/meshtest"
)

// The section "python": our Python package next to nats-py, and to libraries that programs without
// a mesh use. The program python/bench.py measures, in an environment in .venv/bench.

// benchPython makes that environment if needed and returns its interpreter.
func benchPython() (string, error) {
	venv, err := filepath.Abs(filepath.Join(".venv", "bench"))
	if err != nil {
		return "", err
	}
	python := filepath.Join(venv, "bin", "python")
	if _, err := os.Stat(python); err == nil {
		return python, nil
	}
	if python, err = meshtest.Python(venv, "-r", filepath.Join("bench", "python", "requirements.txt")); err != nil {
		_ = os.RemoveAll(venv)
	}
	return python, err
}

// program is one of the programs in Python.
func (s *stage) program(name string, args ...string) (*exec.Cmd, error) {
	python, err := benchPython()
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(s.ctx, python, append([]string{filepath.Join(root, "bench", "python", name)}, args...)...) //nolint:gosec // our own
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python", "src"))
	cmd.Stderr = s.stderr
	return cmd, nil
}

// measurePython runs the program and reads its rows.
func (p *plan) measurePython(s *stage, r *result) error {
	cmd, err := s.program("bench.py", "--url", s.child("broker").hello,
		"--go", toolOf(sideGo, "refund"), "--python", toolOf(sidePython, "refund"))
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var row struct {
			What, Ours, Raw   string
			Ratio, Must, Goal float64
			Least             bool
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			fmt.Fprintln(s.stderr, lines.Text()) // output of a peer
			continue
		}
		var limit *bound
		if row.Goal != 0 {
			limit = &bound{must: row.Must, goal: row.Goal, least: row.Least}
		}
		r.add(line{What: row.What, Ours: row.Ours, Raw: row.Raw, Ratio: row.Ratio}, limit)
	}
	return cmd.Wait()
}
