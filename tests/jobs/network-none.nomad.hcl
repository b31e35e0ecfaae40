# Without a network a task sees loopback only.
# prints: 1 interface

job "offline" {
  type = "batch"

  group "offline" {
    network {
      mode = "none"
    }

    task "offline" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $(($(wc -l < /proc/net/dev) - 2)) interface"]
      }
    }
  }
}
