//go:build pin

package toolmesh

// Kept until every module has its first importer; removed with the last one.
import (
	_ "github.com/BurntSushi/toml"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/jsonschema-go/jsonschema"
	_ "github.com/google/uuid"
	_ "github.com/kelseyhightower/envconfig"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/nats-io/jsm.go"
	_ "github.com/nats-io/jsm.go/natscontext"
	_ "github.com/nats-io/jwt/v2"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/nats-io/nats.go/micro"
	_ "github.com/nats-io/nkeys"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/santhosh-tekuri/jsonschema/v6"
	_ "github.com/spf13/cobra"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/tools/txtar"
)
