package zygote
