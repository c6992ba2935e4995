package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// binaries builds programs of the product below a folder, linked statically.
// Neither the folder of the sources nor this machine's settings of Go leave a trace in them.
func (b *build) binaries(ctx context.Context, to string, names ...string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintf(b.log, "build %s for linux/%s\n", name, b.arch)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(to, "usr/bin", name),
			"-ldflags", "-s -w -X main.version="+b.version+" -X main.commit="+b.commit, "./cmd/"+name)
		cmd.Dir, cmd.Stderr = b.root, b.log
		cmd.Env = append(append(os.Environ(), "GOOS=linux", "GOARCH="+b.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
			"GOEXPERIMENT=", "GOWORK=off", "GOFLAGS=-buildvcs=false"), b.environ...)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
	}
	return nil
}

// router is the image of the router, with the required files only.
func (b *build) router(ctx context.Context, work string) (*image, error) {
	if err := errors.Join(b.routerFiles(ctx, work), os.MkdirAll(filepath.Join(work, home), 0o755)); err != nil {
		return nil, err
	}
	layer, err := folderLayer(work)
	if err != nil {
		return nil, err
	}
	return b.image(routerAbout, namedLayer{layer, "mesh-router, CA certificates"})
}

// routerFiles writes all files of the router's image below a folder, without the home of its user.
func (b *build) routerFiles(ctx context.Context, to string) error {
	roots, err := authorities()
	if err != nil {
		return err
	}
	return errors.Join(
		b.binaries(ctx, to, "mesh-router"),
		put(filepath.Join(to, "etc/passwd"), 0o644, []byte("root:x:0:0::/:/usr/sbin/nologin\n"+passwd+"\n")),
		put(filepath.Join(to, "etc/group"), 0o644, []byte("root:x:0:\n"+group+"\n")),
		put(filepath.Join(to, "etc/ssl/certs/ca-certificates.crt"), 0o644, roots),
		os.MkdirAll(filepath.Join(to, "tmp"), 0o755),
		os.Chmod(filepath.Join(to, "tmp"), 0o777|os.ModeSticky),
	)
}

// authorities are the certificates of the authorities that Mozilla trusts, as PEM. Those of
// this machine are no source: it may trust some that nobody else should. Authorities that are
// trusted with a condition are left out: PEM has no way to say it.
func authorities() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// context writes what the Containerfiles copy: the product's own files. Containerfiles give
// owners by instruction, and only to what is in the folder that is copied: the home has its own.
func (b *build) context(ctx context.Context, folder string) error {
	return errors.Join(
		os.RemoveAll(folder),
		b.routerFiles(ctx, filepath.Join(folder, "router")),
		b.binaries(ctx, filepath.Join(folder, "agent"), "mesh", "mesh-agent"),
		os.MkdirAll(filepath.Join(folder, "home", filepath.Base(home)), 0o750),
		put(filepath.Join(folder, "uv.txt"), 0o644, uvRequirements),
	)
}

// put writes a file, and the folders above it that do not exist.
func put(file string, mode os.FileMode, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, mode)
}
