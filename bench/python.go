package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// The section "python": our Python package against nats-py, and against what people
// use where they have no mesh. The program python/bench.py measures, in an
// environment that is kept in .venv/bench.

// benchPython makes that environment if need be, and returns its interpreter.
func benchPython(ctx context.Context, stderr io.Writer) (string, error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	venv := filepath.Join(root, ".venv", "bench")
	python := filepath.Join(venv, "bin", "python")
	if _, err := os.Stat(python); err != nil {
		for _, args := range [][]string{
			{"python3", "-m", "venv", venv},
			{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", filepath.Join(root, "bench", "python", "requirements.txt")},
		} {
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Stdout, cmd.Stderr = stderr, stderr
			if err := cmd.Run(); err != nil {
				_ = os.RemoveAll(venv)
				return "", fmt.Errorf("%v: %w", args, err)
			}
		}
	}
	return python, nil
}

// measurePython has the program print its rows.
func (p *plan) measurePython(ctx context.Context, stderr io.Writer, s *stage, r *result) error {
	python, err := benchPython(ctx, stderr)
	if err != nil {
		return err
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, python, filepath.Join(root, "bench", "python", "bench.py"), "--url", s.broker.hello,
		"--go", toolOf(sideGo, "refund"), "--python", toolOf(sidePython, "refund"), "--bin", filepath.Join(root, "bin", "mesh"))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python", "src"))
	cmd.Stderr = stderr
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
			fmt.Fprintln(stderr, lines.Text()) // a peer's own words
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
