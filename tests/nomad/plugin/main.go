// Nomad's own raw_exec and qemu drivers, served as plugins, for `agentbin run --plugin-dir`: drivers that are not ours. (A4)
//
// Its file name says which. It starts itself again as the executor of each task, which the drivers' packages bring along.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/qemu"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/plugins"
)

func main() {
	name := filepath.Base(os.Args[0])
	drivers := map[string]func(context.Context, hclog.Logger) any{
		"raw_exec": func(ctx context.Context, logger hclog.Logger) any { return rawexec.NewRawExecDriver(ctx, logger) },
		"qemu":     func(ctx context.Context, logger hclog.Logger) any { return qemu.NewQemuDriver(ctx, logger) },
	}
	driver, is := drivers[name]
	if !is {
		fmt.Fprintf(os.Stderr, "there is no driver %q here; name the file raw_exec or qemu\n", name)
		os.Exit(1)
	}
	plugins.Serve(func(logger hclog.Logger) any { return driver(context.Background(), logger) })
}
