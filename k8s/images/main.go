package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// build describes the images to make and their folder.
type build struct {
	root    string // of the product's sources
	out     string // folder that takes the images
	arch    string // amd64 or arm64
	suite   string // of Debian
	prefix  string // of the images' names
	version string
	commit  string
	epoch   time.Time // of everything that has to have a time
	environ []string  // added to the Go command's environment
	log     io.Writer // reports long steps
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	syscall.Umask(0o022) // modes of files are those of the images
	b := &build{log: os.Stderr}
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&b.root, "root", "../..", "folder of the product's sources")
	flags.StringVar(&b.out, "out", "../../dist/images", "folder that takes the images")
	flags.StringVar(&b.arch, "arch", runtime.GOARCH, "amd64 or arm64; the agent's of another machine needs its binaries to run here")
	flags.StringVar(&b.suite, "suite", "bookworm", "suite of Debian, one that this machine's apt knows")
	flags.StringVar(&b.prefix, "prefix", "localhost/toolmesh", "what the images' names begin with")
	flags.StringVar(&b.version, "version", "dev", "version, which is the tag, too")
	flags.StringVar(&b.commit, "commit", "unknown", "commit of the sources")
	epoch := flags.Int64("epoch", 0, "time of the images, in seconds since 1970")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "images [flags] agent|router|context…\n\n\"context\" is the folder that the Containerfiles are built in. Without a name: agent and router.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	b.epoch = time.Unix(*epoch, 0).UTC()
	if b.arch != "amd64" && b.arch != "arm64" {
		return fmt.Errorf("-arch is %q, want amd64 or arm64", b.arch)
	}
	names := flags.Args()
	if len(names) == 0 {
		names = []string{"router", "agent"}
	}
	for _, name := range names {
		start := time.Now()
		said, err := b.make(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%s (%s)\n", said, time.Since(start).Round(time.Second))
	}
	return nil
}

// make makes one image, and prints a line about it.
func (b *build) make(ctx context.Context, name string) (string, error) {
	if name == "context" {
		folder := filepath.Join(b.out, "context")
		return folder, b.context(ctx, folder)
	}
	making, ok := map[string]func(context.Context, string) (*image, error){"agent": b.agent, "router": b.router}[name]
	if !ok {
		return "", errors.New("there is no such image, want agent or router")
	}
	temporary, err := os.MkdirTemp("", "mesh-images-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temporary) //nolint:errcheck // it is of the temporary folder
	work := filepath.Join(temporary, name)
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", err
	}
	img, err := making(ctx, work)
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	size, err := b.write(img)
	return fmt.Sprintf("%s %s %.1f MB", b.reference(img.name), digest, float64(size)/1e6), err
}

// reference is the image's full name.
func (b *build) reference(name string) string {
	return strings.TrimSuffix(b.prefix, "/") + "/" + name + ":" + b.version
}
