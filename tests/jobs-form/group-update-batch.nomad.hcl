job "group-update-batch" {
  type = "batch"
  group "g" {
    update {
      max_parallel = 2
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
