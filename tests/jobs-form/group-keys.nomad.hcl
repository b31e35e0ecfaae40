job "group-keys" {
  group "g" {
    count = 3
    shutdown_delay = "7s"
    stop_after_client_disconnect = "1h"
    meta {
      a = "b"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
