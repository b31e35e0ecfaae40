job "backup" {
  type = "batch"
  periodic {
    crons = ["@daily", "12 * *"]
  }
  group "backup" {
    task "dump" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
