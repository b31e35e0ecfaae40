// Nomad's own raw_exec driver, served as a plugin, for `agentbin run --plugin-dir`: a driver that is not ours. (A4)
//
// It starts itself again as the executor of each task, which the driver's package brings along.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/plugins"
)

func main() {
	plugins.Serve(func(logger hclog.Logger) any {
		return rawexec.NewRawExecDriver(context.Background(), logger)
	})
}
