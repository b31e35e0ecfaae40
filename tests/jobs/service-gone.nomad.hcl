# A service is taken from the list before its task is killed.
# meanwhile: $AGENTBIN services --json | grep -q '"orders"'
# after: ! $AGENTBIN services --json | grep -q '"orders"'
# prints: stopped
# status: 143

job "orders" {
  group "orders" {
    network {
      port "grpc" {}
    }

    shutdown_delay = "1s"

    service {
      name     = "orders"
      provider = "nomad"
      port     = "grpc"

      meta {
        version = "3"
      }
    }

    task "orders" {
      driver      = "raw_exec"
      kill_signal = "SIGTERM"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo stopped; exit 0' TERM; while :; do sleep 1 & wait; done"]
      }
    }
  }
}
