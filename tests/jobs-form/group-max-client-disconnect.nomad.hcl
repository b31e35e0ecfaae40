job "group-max-client-disconnect" {
  group "g" {
    max_client_disconnect = "2h"
    prevent_reschedule_on_lost = true
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
